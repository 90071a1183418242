from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from typing import TYPE_CHECKING, Final
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.core.ids import JobIdGenerator, new_job_id, new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

few = settings(max_examples=50, deadline=None)

NOON: Final = 1_900_000_000_000
TAIL_BITS: Final = 74


def milliseconds(job_id: UUID) -> int:
    return job_id.int >> 80


def tail(job_id: UUID) -> int:
    """Return what stands between version and variant bits, and after them, as one number."""
    high, low = job_id.int >> 64 & 0xFFF, job_id.int & (1 << 62) - 1
    return high << 62 | low


def ticking(times: Iterable[int]) -> Callable[[], int]:
    return iter(times).__next__


def constant(byte: int) -> Callable[[int], bytes]:
    return lambda size: bytes([byte]) * size


def test_an_id_is_a_uuid_of_version_seven() -> None:
    job_id = new_job_id()

    assert job_id.version == 7
    assert job_id.variant == RFC_4122


@few
@given(st.lists(st.integers(0, 2**48 - 1_000), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_version_and_variant_stay_right_whatever_time_and_chance_say(times: list[int], chance: Random) -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(ticking(times)), entropy=chance.randbytes)

    made = [ids() for _ in times]

    assert {(job_id.version, job_id.variant) for job_id in made} == {(7, RFC_4122)}


@few
@given(st.lists(st.integers(0, 2**48 - 1_000), min_size=2, max_size=50), st.randoms(use_true_random=False))
def test_ids_grow_whatever_the_clock_does(times: list[int], chance: Random) -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(ticking(times)), entropy=chance.randbytes)

    made = [ids() for _ in times]

    assert all(earlier < later for earlier, later in pairwise(made))


def test_an_id_tells_when_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    job_id = JobIdGenerator()()
    after = time.time_ns() // 1_000_000

    assert before <= milliseconds(job_id) <= after


def test_a_clock_that_stands_still_makes_the_random_part_grow() -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON))

    made = [ids() for _ in range(1_000)]

    assert {milliseconds(job_id) for job_id in made} == {NOON}
    assert all(tail(earlier) < tail(later) for earlier, later in pairwise(made))


def test_ids_of_one_millisecond_are_not_neighbours_that_can_be_guessed() -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON))

    steps = {tail(later) - tail(earlier) for earlier, later in pairwise([ids() for _ in range(100)])}

    assert len(steps) > 90
    assert max(steps) > 2**24


def test_a_clock_that_runs_back_does_not_take_the_ids_with_it() -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(ticking([NOON, NOON - 3_600_000, NOON - 1])))

    made = [ids() for _ in range(3)]

    assert [milliseconds(job_id) for job_id in made] == [NOON, NOON, NOON]
    assert made == sorted(made)


def test_a_clock_that_caught_up_is_followed_again() -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(ticking([NOON, NOON - 5, NOON + 1])))

    made = [ids() for _ in range(3)]

    assert [milliseconds(job_id) for job_id in made] == [NOON, NOON, NOON + 1]


def test_a_random_part_without_room_left_moves_the_time_part_on() -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON), entropy=constant(0xFF))
    room = 2 ** (TAIL_BITS - 1)
    first = ids()

    ids._last_tail += room - 1  # noqa: SLF001  2**41 calls would do the same
    second, third = ids(), ids()

    assert tail(first) < room
    assert [milliseconds(job_id) for job_id in (first, second, third)] == [NOON, NOON + 1, NOON + 1]
    assert first < second < third


def test_a_new_random_part_leaves_room_to_grow() -> None:
    first = JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON), entropy=constant(0xFF))()

    assert tail(first) == 2 ** (TAIL_BITS - 1) - 1


@few
@given(st.lists(st.integers(0, 30), max_size=10), st.randoms(use_true_random=False))
def test_ids_made_many_at_once_grow_and_those_after_them_too(counts: list[int], chance: Random) -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON - chance.randrange(3)), entropy=chance.randbytes)

    made = [[ids(), *ids.many(count)] for count in counts]

    assert [len(each) - 1 for each in made] == counts
    assert all(earlier < later for earlier, later in pairwise(job_id for each in made for job_id in each))
    assert all((job_id.version, job_id.variant) == (7, RFC_4122) for each in made for job_id in each)


def test_many_ids_without_room_left_move_the_time_part_on() -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON), entropy=constant(0xFF))
    first = ids()

    ids._last_tail += 2 ** (TAIL_BITS - 1) - 2**34  # noqa: SLF001  as above
    made = ids.many(10)

    assert {milliseconds(job_id) for job_id in made} == {NOON, NOON + 1}
    assert all(earlier < later for earlier, later in pairwise([first, *made]))


def test_two_factories_do_not_make_the_same_ids() -> None:
    one, other = (
        JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON)),
        JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON)),
    )

    assert {one() for _ in range(1_000)}.isdisjoint({other() for _ in range(1_000)})


@pytest.mark.parametrize("make", [lambda ids: ids(), lambda ids: ids.many(2)], ids=["one", "many"])
def test_no_other_thread_can_make_an_id_before_the_last_one_is_noted(
    make: Callable[[JobIdGenerator], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = CountingLock()
    monkeypatch.setattr("taskharbor.core.ids.threading.RLock", lambda: lock)
    depths: list[int] = []

    def asked() -> int:
        depths.append(lock.depth)
        return NOON

    make(JobIdGenerator(nanoseconds=in_nanoseconds(asked)))

    assert depths
    assert min(depths) > 0
    assert lock.depth == 0


class CountingLock:
    """Stands for the lock: threads that race would find a missing one only by luck."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *raised: object) -> None:
        self.depth -= 1


def test_threads_never_get_the_same_id_and_each_sees_them_grow() -> None:
    threads, each = 8, 5_000
    start = Barrier(threads)

    def make(_: int) -> list[UUID]:
        start.wait(timeout=10)
        return [new_job_id() for _ in range(each)]

    with ThreadPoolExecutor(threads) as pool:
        made = list(pool.map(make, range(threads)))

    assert len({job_id for ids in made for job_id in ids}) == threads * each
    assert all(earlier < later for ids in made for earlier, later in pairwise(ids))


def test_tokens_are_never_the_same_and_tell_nothing() -> None:
    tokens = [new_token() for _ in range(10_000)]

    assert len(set(tokens)) == 10_000
    assert {token.version for token in tokens} == {4}


# In processes of their own: pytest's must not be forked while it has threads, and
# a child that hangs must be stopped by somebody.
CHILD_GOES_ITS_OWN_WAY: Final = """
import os
from taskharbor.core.ids import JobIdGenerator

ids = JobIdGenerator(nanoseconds=lambda: 1_900_000_000_000_000_000)
print(ids(), flush=True)
child = os.fork()
if child:  # it prints after the child has
    os.waitpid(child, 0)
print(*(ids() for _ in range(500)), sep="\\n", flush=True)
"""

FORKED_UNDER_LOAD: Final = """
import os, signal, threading
from taskharbor.core.ids import new_job_id

def hammer():
    while True:
        new_job_id()

for _ in range(3):
    threading.Thread(target=hammer, daemon=True).start()
for _ in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(5)  # ends a child that waits for a lock nobody holds any more
        new_job_id()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        os._exit(1)
os._exit(0)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=30)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@needs_fork
def test_a_forked_child_does_not_make_the_ids_of_its_parent() -> None:
    done = run(CHILD_GOES_ITS_OWN_WAY)

    made = done.stdout.split()
    assert done.returncode == 0, done.stderr
    assert len(set(made)) == len(made) == 1_001


@needs_fork
def test_a_forked_child_does_not_go_on_from_the_last_id_of_its_parent() -> None:
    done = run(CHILD_GOES_ITS_OWN_WAY)

    parents, childs, *_ = (UUID(line) for line in done.stdout.split())
    assert abs(tail(childs) - tail(parents)) > 2**40  # a step is at most 2**32


@needs_fork
def test_a_child_forked_while_a_thread_made_an_id_does_not_wait_for_that_thread() -> None:
    done = run(FORKED_UNDER_LOAD)

    assert done.returncode == 0, done.stderr


def in_nanoseconds(milliseconds: Callable[[], int]) -> Callable[[], int]:
    return lambda: milliseconds() * 1_000_000
