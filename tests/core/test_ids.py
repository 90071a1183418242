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
    """Return the random bits between and after the version and variant bits, as one number."""
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
def test_version_and_variant_are_right_for_any_time_and_entropy(times: list[int], chance: Random) -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(ticking(times)), entropy=chance.randbytes)

    made = [ids() for _ in times]

    assert {(job_id.version, job_id.variant) for job_id in made} == {(7, RFC_4122)}


@few
@given(st.lists(st.integers(0, 2**48 - 1_000), min_size=2, max_size=50), st.randoms(use_true_random=False))
def test_ids_increase_for_any_clock(times: list[int], chance: Random) -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(ticking(times)), entropy=chance.randbytes)

    made = [ids() for _ in times]

    assert all(earlier < later for earlier, later in pairwise(made))


def test_an_id_contains_its_creation_time() -> None:
    before = time.time_ns() // 1_000_000
    job_id = JobIdGenerator()()
    after = time.time_ns() // 1_000_000

    assert before <= milliseconds(job_id) <= after


def test_a_clock_that_stands_still_increases_the_random_part() -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON))

    made = [ids() for _ in range(1_000)]

    assert {milliseconds(job_id) for job_id in made} == {NOON}
    assert all(tail(earlier) < tail(later) for earlier, later in pairwise(made))


def test_ids_of_one_millisecond_are_not_consecutive() -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON))

    steps = {tail(later) - tail(earlier) for earlier, later in pairwise([ids() for _ in range(100)])}

    assert len(steps) > 90
    assert max(steps) > 2**24


def test_ids_increase_when_the_clock_moves_back() -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(ticking([NOON, NOON - 3_600_000, NOON - 1])))

    made = [ids() for _ in range(3)]

    assert [milliseconds(job_id) for job_id in made] == [NOON, NOON, NOON]
    assert made == sorted(made)


def test_ids_follow_the_clock_again_after_it_caught_up() -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(ticking([NOON, NOON - 5, NOON + 1])))

    made = [ids() for _ in range(3)]

    assert [milliseconds(job_id) for job_id in made] == [NOON, NOON, NOON + 1]


def test_an_overflowing_random_part_increases_the_time_part() -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON), entropy=constant(0xFF))
    room = 2 ** (TAIL_BITS - 1)
    first = ids()

    ids._last_tail += room - 1  # noqa: SLF001  instead of 2**41 calls
    second, third = ids(), ids()

    assert tail(first) < room
    assert [milliseconds(job_id) for job_id in (first, second, third)] == [NOON, NOON + 1, NOON + 1]
    assert first < second < third


def test_a_new_random_part_has_its_highest_bit_clear() -> None:
    first = JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON), entropy=constant(0xFF))()

    assert tail(first) == 2 ** (TAIL_BITS - 1) - 1


@few
@given(st.lists(st.integers(0, 30), max_size=10), st.randoms(use_true_random=False))
def test_ids_increase_within_and_after_a_bulk_call(counts: list[int], chance: Random) -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON - chance.randrange(3)), entropy=chance.randbytes)

    made = [[ids(), *ids.many(count)] for count in counts]

    assert [len(each) - 1 for each in made] == counts
    assert all(earlier < later for earlier, later in pairwise(job_id for each in made for job_id in each))
    assert all((job_id.version, job_id.variant) == (7, RFC_4122) for each in made for job_id in each)


def test_a_bulk_call_that_overflows_increases_the_time_part() -> None:
    ids = JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON), entropy=constant(0xFF))
    first = ids()

    ids._last_tail += 2 ** (TAIL_BITS - 1) - 2**34  # noqa: SLF001  as above
    made = ids.many(10)

    assert {milliseconds(job_id) for job_id in made} == {NOON, NOON + 1}
    assert all(earlier < later for earlier, later in pairwise([first, *made]))


def test_two_generators_do_not_make_the_same_ids() -> None:
    one, other = (
        JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON)),
        JobIdGenerator(nanoseconds=in_nanoseconds(lambda: NOON)),
    )

    assert {one() for _ in range(1_000)}.isdisjoint({other() for _ in range(1_000)})


@pytest.mark.parametrize("make", [lambda ids: ids(), lambda ids: ids.many(2)], ids=["one", "many"])
def test_no_thread_can_make_an_id_before_the_last_one_is_recorded(
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
    """Replaces the lock: racing threads would reveal a missing lock only by chance."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *raised: object) -> None:
        self.depth -= 1


def test_ids_are_unique_across_threads_and_increase_in_each() -> None:
    threads, each = 8, 5_000
    start = Barrier(threads)

    def make(_: int) -> list[UUID]:
        start.wait(timeout=10)
        return [new_job_id() for _ in range(each)]

    with ThreadPoolExecutor(threads) as pool:
        made = list(pool.map(make, range(threads)))

    assert len({job_id for ids in made for job_id in ids}) == threads * each
    assert all(earlier < later for ids in made for earlier, later in pairwise(ids))


def test_tokens_are_unique_and_random() -> None:
    tokens = [new_token() for _ in range(10_000)]

    assert len(set(tokens)) == 10_000
    assert {token.version for token in tokens} == {4}


# In separate processes: pytest must not be forked while it has threads, and a child
# that hangs must be killed.
FORKED_CHILD: Final = """
import os
from taskharbor.core.ids import JobIdGenerator

ids = JobIdGenerator(nanoseconds=lambda: 1_900_000_000_000_000_000)
print(ids(), flush=True)
child = os.fork()
if child:  # print after the child
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
        signal.alarm(5)  # ends a child that waits for a lock of its parent
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
    done = run(FORKED_CHILD)

    made = done.stdout.split()
    assert done.returncode == 0, done.stderr
    assert len(set(made)) == len(made) == 1_001


@needs_fork
def test_a_forked_child_does_not_continue_from_its_parents_last_id() -> None:
    done = run(FORKED_CHILD)

    parents, childs, *_ = (UUID(line) for line in done.stdout.split())
    assert abs(tail(childs) - tail(parents)) > 2**40  # a step is at most 2**32


@needs_fork
def test_a_child_forked_while_the_lock_is_held_does_not_deadlock() -> None:
    done = run(FORKED_UNDER_LOAD)

    assert done.returncode == 0, done.stderr


def in_nanoseconds(milliseconds: Callable[[], int]) -> Callable[[], int]:
    return lambda: milliseconds() * 1_000_000
