"""Single jobs of many callers at once: what is sent together, and that nobody suffers from it."""

from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from taskharbor import Client, Enqueued, JobRequest, MemoryDriver
from taskharbor.core.errors import EnqueueRefused, IdempotencyConflict, InvalidRequest, StoreUnavailable
from taskharbor.core.hooks import JobEnqueued
from taskharbor.core.results import JobFilter
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.group_commit import aio, sync
from tests.support.fork import in_a_child
from tests.support.postgres import emptied
from tests.support.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

    from taskharbor.core.hooks import HookEvent
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import NewJob

N: Final = 32


class Gated(PostgresDriver):
    """A real store, whose first insert waits until it may go on, and on which an insert can be made to fail."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.batches: list[list[NewJob]] = []
        self.repeats: list[bool] = []
        self.threads: list[threading.Thread] = []
        self.has_begun, self.may_go = threading.Event(), threading.Event()
        self.fail: Callable[[Sequence[NewJob]], None] = lambda _: None
        self.fail_late: Callable[[Sequence[NewJob]], None] = lambda _: None

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        self.batches.append([*jobs])
        self.repeats.append(repeat)
        self.threads.append(threading.current_thread())
        if len(self.batches) == 1:
            self.has_begun.set()
            assert self.may_go.wait(LIMIT)
        self.fail(jobs)
        answers = super().insert(jobs, repeat=repeat)
        self.fail_late(jobs)
        return answers

    @property
    def sizes(self) -> list[int]:
        return list(map(len, self.batches))

    def stored(self) -> list[JobId]:
        return sorted(job.id for job in self.inspector.find(JobFilter(), limit=1_000).jobs)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sync, "LEADER_TIMEOUT_SECONDS", LIMIT
    )  # a slow machine must not look like a leader that is gone


@pytest.fixture
def driver() -> Iterator[Gated]:
    with closing(Gated(emptied())) as driver:
        yield driver


@pytest.fixture
def client(driver: Gated) -> Iterator[Client]:
    with closing(Client(driver)) as client:
        yield client


@pytest.fixture
def pool(driver: Gated) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2 * N) as pool:
        yield pool
        driver.may_go.set()


def request(**fields: Any) -> JobRequest:
    return JobRequest(**{"type": "greet"} | fields)


def waiting(client: Client) -> int:
    return len(client._group_commit._waiting)  # noqa: SLF001  nobody but a test asks who waits


def gathered(
    client: Client, driver: Gated, pool: ThreadPoolExecutor, *others: JobRequest
) -> tuple[Future[Enqueued], list[Future[Enqueued]]]:
    """Let one caller be in the store, and *others* wait behind it in this order."""
    first = pool.submit(client.enqueue, request())
    assert driver.has_begun.wait(LIMIT)
    behind = []
    for place, each in enumerate(others):
        behind.append(pool.submit(client.enqueue, each))
        wait_until(lambda place=place: waiting(client) == place + 1)  # type: ignore[misc]
    return first, behind


@contextmanager
def interrupted_by(handle: Callable[[], None]) -> Iterator[Callable[[], float]]:
    """Give what makes the main thread *handle* a signal, once; it must have returned before this ends."""
    assert threading.current_thread() is threading.main_thread()
    begun: list[bool] = []

    def hear(*_: Any) -> None:
        if not begun:
            begun.append(True)
            handle()

    def interrupt() -> bool:
        if not begun:  # again and again: what comes just before the thread goes to sleep is not heard until it wakes
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return bool(begun)

    before = signal.signal(signal.SIGUSR1, hear)
    try:
        yield partial(wait_until, interrupt)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_threads_that_enqueue_while_one_is_in_the_store_go_out_in_one_statement(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    first, behind = gathered(client, driver, pool, *[request()] * (N - 1))

    driver.may_go.set()

    answers = [each.result(LIMIT) for each in (first, *behind)]
    assert driver.sizes == [1, N - 1]
    assert driver.stored() == sorted(answer.id for answer in answers)
    assert not any(answer.existed for answer in answers)


def test_each_caller_returns_only_after_its_own_commit(driver: Gated, pool: ThreadPoolExecutor) -> None:
    client = Client(driver)

    def enqueue_and_look(_: int) -> bool:
        enqueued = client.enqueue(request())
        return enqueued.id in driver.inspector.get([enqueued.id])

    driver.may_go.set()
    assert all(pool.map(enqueue_and_look, range(5 * N), timeout=LIMIT))


def test_a_lone_caller_inserts_at_once_and_in_its_own_thread(client: Client, driver: Gated) -> None:
    driver.may_go.set()

    client.enqueue(request())
    client.enqueue(request())

    assert driver.threads == 2 * [threading.current_thread()]


def test_a_batch_is_sent_by_one_of_its_own_callers(client: Client, driver: Gated, pool: ThreadPoolExecutor) -> None:
    first, behind = gathered(client, driver, pool, *[request()] * 3)

    driver.may_go.set()

    wait_for([first, *behind])
    assert driver.threads[0] is not driver.threads[1]
    assert all(each.name.startswith("ThreadPoolExecutor") for each in driver.threads)


def test_who_comes_back_first_waits_a_moment_for_the_others_and_no_longer_than_until_they_are_there(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    first, behind = gathered(client, driver, pool, *[request()] * 3)
    driver.may_go.set()
    wait_for([first, *behind])
    client._group_commit._expected, client._group_commit._pause = 4, LIMIT  # noqa: SLF001  a moment that no machine is too slow for

    leader = pool.submit(client.enqueue, request())
    wait_until(lambda: client._group_commit._gathering is not None)  # noqa: SLF001  as above
    others = [pool.submit(client.enqueue, request()) for _ in range(3)]

    wait_for([leader, *others])
    assert driver.sizes == [1, 3, 4]


def test_a_lone_caller_waits_for_nobody_and_after_a_crowd_only_once(client: Client, driver: Gated) -> None:
    driver.may_go.set()
    client._group_commit._expected = 32  # noqa: SLF001  as after a crowd, which is gone

    client.enqueue(request())
    client._group_commit._pause = LIMIT  # noqa: SLF001  would be too long for this test

    client.enqueue(request())
    assert driver.sizes == [1, 1]


def wait_for(callers: Sequence[Future[Enqueued]]) -> None:
    for each in callers:
        each.result(LIMIT)


def test_a_batch_has_a_bounded_number_of_jobs(
    client: Client, driver: Gated, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "MAX_BATCH_JOBS", 10)
    first, behind = gathered(client, driver, pool, *[request()] * 25)

    driver.may_go.set()

    answers = [each.result(LIMIT) for each in (first, *behind)]
    assert driver.sizes == [1, 10, 10, 5]
    assert driver.stored() == sorted(answer.id for answer in answers)


def test_a_batch_has_a_bounded_number_of_bytes_or_one_job(
    client: Client, driver: Gated, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "MAX_BATCH_BYTES", 100)
    payloads = ["small", "small", "x" * 90, "x" * 200, "small"]
    first, behind = gathered(client, driver, pool, *(request(payload=each) for each in payloads))

    driver.may_go.set()

    wait_for([first, *behind])
    assert driver.sizes == [1, 2, 1, 1, 1]


def test_a_request_that_breaks_a_rule_is_refused_before_it_waits_for_anybody(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    gathered(client, driver, pool)

    with pytest.raises(InvalidRequest):
        client.enqueue(request(queue="e mail"))

    assert driver.sizes == [1]


def test_only_the_guilty_one_of_a_batch_fails(client: Client, driver: Gated, pool: ThreadPoolExecutor) -> None:
    def refuse_poison(jobs: Sequence[NewJob]) -> None:
        if any(job.type == "poison" for job in jobs):
            raise ValueError("poison")

    driver.fail = refuse_poison
    first, behind = gathered(client, driver, pool, request(), request(type="poison"), request())

    driver.may_go.set()

    with pytest.raises(ValueError, match="poison"):
        behind[1].result(LIMIT)
    stored = [each.result(LIMIT) for each in (first, behind[0], behind[2])]
    assert driver.stored() == sorted(answer.id for answer in stored)


def test_an_error_after_the_commit_doubles_no_job(client: Client, driver: Gated, pool: ThreadPoolExecutor) -> None:
    def break_many(jobs: Sequence[NewJob]) -> None:
        if len(jobs) > 1:
            raise ValueError("the bell is broken")

    driver.fail_late = break_many
    first, behind = gathered(client, driver, pool, *[request()] * 3)

    driver.may_go.set()

    answers = [each.result(LIMIT) for each in (first, *behind)]
    assert driver.stored() == sorted(answer.id for answer in answers)


def test_a_store_out_of_reach_is_told_to_each_caller_of_the_batch_after_one_repeat_under_the_same_ids(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    first, behind = gathered(client, driver, pool, *[request()] * 3)

    def be_away(jobs: Sequence[NewJob]) -> None:
        if len(jobs) > 1:
            raise StoreUnavailable("no route")

    driver.fail = be_away
    driver.may_go.set()

    errors = [each.exception(LIMIT) for each in behind]
    assert [str(error) for error in errors] == 3 * ["store unavailable: no route"]
    assert len(set(map(id, errors))) == 3
    assert not first.result(LIMIT).existed
    assert driver.batches[1] == driver.batches[2]
    assert driver.repeats == [False, False, True]


def test_how_long_to_wait_is_told_to_each_caller_of_the_batch(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    _, behind = gathered(client, driver, pool, *[request()] * 3)

    def be_away(jobs: Sequence[NewJob]) -> None:
        if len(jobs) > 1:
            raise StoreUnavailable("gone", retry_in=timedelta(seconds=1))

    driver.fail = be_away
    driver.may_go.set()

    errors = [each.exception(LIMIT) for each in behind]
    assert [str(error) for error in errors] == 3 * ["store unavailable: gone; try again in 1 s"]
    assert driver.repeats == [False, False]


def test_a_store_that_goes_away_while_the_guilty_one_is_looked_for_is_tried_no_further(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    def break_and_leave(jobs: Sequence[NewJob]) -> None:
        if len(jobs) > 1:
            raise ValueError("odd")
        if len(driver.batches) > 2:
            raise StoreUnavailable("no route")

    driver.fail = break_and_leave
    _, behind = gathered(client, driver, pool, *[request()] * 10)

    driver.may_go.set()

    errors = [each.exception(LIMIT) for each in behind]
    assert {type(error) for error in errors} == {StoreUnavailable}
    assert driver.sizes == [1, 10, 1, 1]


def test_a_job_whose_reply_was_lost_once_is_stored_once(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    losses = [StoreUnavailable("reply lost")]

    def lose_reply(jobs: Sequence[NewJob]) -> None:
        if len(jobs) > 1 and losses:
            raise losses.pop()

    driver.fail_late = lose_reply
    first, behind = gathered(client, driver, pool, *[request()] * 3)

    driver.may_go.set()

    answers = [each.result(LIMIT) for each in (first, *behind)]
    assert driver.stored() == sorted(answer.id for answer in answers)


@pytest.mark.parametrize("moment", ["fail", "fail_late"])
def test_a_leader_that_is_interrupted_leaves_nobody_behind_and_doubles_no_job(
    client: Client, driver: Gated, pool: ThreadPoolExecutor, moment: str
) -> None:
    interrupts = [KeyboardInterrupt()]

    def interrupt(jobs: Sequence[NewJob]) -> None:
        if len(jobs) > 1 and interrupts:
            raise interrupts.pop()

    setattr(driver, moment, interrupt)
    first, behind = gathered(client, driver, pool, *[request()] * 4)

    driver.may_go.set()

    assert isinstance(behind[0].exception(LIMIT), KeyboardInterrupt)
    answers = [each.result(LIMIT) for each in (first, *behind[1:])]
    assert driver.sizes == [1, 4, 3]
    assert driver.repeats == [False, False, True]
    assert {answer.id for answer in answers} <= {*driver.stored()}
    assert len(driver.stored()) == (5 if moment == "fail_late" else 4)


def test_ctrl_c_while_waiting_takes_the_job_back_and_holds_up_nobody(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    first, before = gathered(client, driver, pool, request())

    def press_ctrl_c(interrupt: Callable[[], float]) -> Future[Enqueued]:
        wait_until(lambda: waiting(client) == 2)
        after = pool.submit(client.enqueue, request())
        wait_until(lambda: waiting(client) == 3)
        interrupt()
        return after

    with interrupted_by(partial(signal.default_int_handler, signal.SIGINT, None)) as interrupt:
        pressing = pool.submit(press_ctrl_c, interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.enqueue(request(type="mine"))
        after = pressing.result(LIMIT)
    driver.may_go.set()

    for each in (first, *before, after):
        each.result(LIMIT)
    assert driver.sizes == [1, 2]
    assert "mine" not in {job.type for jobs in driver.batches for job in jobs}


def test_a_signal_handler_that_enqueues_does_not_wait_for_the_leader_it_interrupted(
    client: Client, driver: Gated, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "LEADER_TIMEOUT_SECONDS", 0.05)
    handled: list[Enqueued] = []

    def ring(interrupt: Callable[[], float]) -> None:
        assert driver.has_begun.wait(LIMIT)
        interrupt()
        wait_until(lambda: bool(handled))
        driver.may_go.set()

    with interrupted_by(lambda: handled.append(client.enqueue(request()))) as interrupt:
        ringing = pool.submit(ring, interrupt)
        interrupted = client.enqueue(request())
        ringing.result(LIMIT)

    assert driver.stored() == sorted([interrupted.id, handled[0].id])


def test_a_leader_that_does_not_come_back_holds_up_those_behind_it_for_a_moment_only(
    client: Client, driver: Gated, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, behind = gathered(client, driver, pool)
    monkeypatch.setattr(sync, "LEADER_TIMEOUT_SECONDS", 0.05)

    behind = [pool.submit(client.enqueue, request()) for _ in range(3)]

    for each in behind:
        each.result(LIMIT)
    assert not first.done()


def test_who_is_never_answered_is_told_that_nobody_knows(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "LEADER_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(sync, "GIVE_UP_SECONDS", 0.05)
    # As if a leader had vanished, and kept its place.
    monkeypatch.setattr(sync.GroupCommit, "_has_room", lambda _: False)
    monkeypatch.setattr(client._group_commit, "_expected", 2)  # noqa: SLF001  no public sign of it

    with pytest.raises(StoreUnavailable, match="was not heard of since"):
        client.enqueue(request())

    assert waiting(client) == 0


def test_a_job_with_a_key_goes_out_alone_and_waits_for_nobody(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    first, behind = gathered(client, driver, pool, request())

    keyed = client.enqueue(request(idempotency_key="k"))

    assert not first.done()
    assert not behind[0].done()
    assert [job.id for job in driver.batches[1]] == [keyed.id]


def test_nobody_waits_for_a_key_that_somebody_elses_transaction_holds(driver: Gated, pool: ThreadPoolExecutor) -> None:
    client = Client(driver)
    driver.may_go.set()
    with psycopg.connect(emptied()) as db, db.transaction():
        Client(driver.join(db)).enqueue(request(idempotency_key="held"))
        held = pool.submit(client.enqueue, request(idempotency_key="held"))
        wait_until(lambda: len(driver.batches) == 1)

        for _ in range(3):
            client.enqueue(request())

        assert not held.done()
    assert held.result(LIMIT).existed


def test_hooks_are_told_of_each_job_by_its_own_caller(driver: Gated, pool: ThreadPoolExecutor) -> None:
    told: list[tuple[HookEvent, threading.Thread]] = []
    client = Client(driver, hooks=[lambda fact: told.append((fact, threading.current_thread()))])
    first, behind = gathered(client, driver, pool, *[request()] * 3)

    driver.may_go.set()

    ids = {each.result(LIMIT).id for each in (first, *behind)}
    assert {fact.job_id for fact, _ in told if isinstance(fact, JobEnqueued)} == ids
    assert len({thread for _, thread in told}) == 4


class OneAtATime(MemoryDriver):
    """A store that does not ask for batches, and whose first insert waits until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_go = threading.Event(), threading.Event()

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        if not self.has_begun.is_set():
            self.has_begun.set()
            assert self.may_go.wait(LIMIT)
        return super().insert(jobs, repeat=repeat)


def test_where_the_store_does_not_ask_for_it_each_caller_inserts_for_itself(pool: ThreadPoolExecutor) -> None:
    driver = OneAtATime()
    client = Client(driver)
    first = pool.submit(client.enqueue, request())
    assert driver.has_begun.wait(LIMIT)

    client.enqueue(request())

    assert not first.done()
    driver.may_go.set()
    assert not first.result(LIMIT).existed


def test_a_job_enqueued_in_a_transaction_of_the_memory_store_is_taken_back_with_it() -> None:
    driver = MemoryDriver()
    client = Client(driver)

    with suppress(ZeroDivisionError), driver.transaction():
        client.enqueue(request())
        raise ZeroDivisionError

    assert not driver.inspector.find(JobFilter(), limit=1).jobs


def test_a_client_in_a_transaction_that_a_driver_has_joined_inserts_in_it_and_at_once(driver: Gated) -> None:
    with psycopg.connect(emptied()) as db, db.transaction():
        enqueued = Client(driver.join(db)).enqueue(request())

        assert db.execute("SELECT id FROM th_jobs").fetchall() == [(enqueued.id,)]
        assert driver.stored() == []


def test_threads_enqueue_together_on_sqlite_too(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with closing(SqliteDriver(tmp_path / "jobs.db")) as driver:
        client = Client(driver)

        answers = list(pool.map(lambda _: client.enqueue(request()), range(5 * N), timeout=LIMIT))

        assert driver.inspector.get([answer.id for answer in answers]).keys() == {answer.id for answer in answers}


def test_a_child_of_a_fork_does_not_wait_for_threads_of_its_parent(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    first, behind = gathered(client, driver, pool, request())

    code = in_a_child(lambda: client.enqueue(request(type="child")))

    driver.may_go.set()
    wait_for([first, *behind])
    assert code == 0
    assert len(driver.stored()) == 3


async def has(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, LIMIT)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def timed() -> Any:
        async with asyncio.timeout(LIMIT):
            return await work

    return asyncio.run(timed())


def test_coroutines_of_one_turn_of_the_loop_go_out_in_one_statement(client: Client, driver: Gated) -> None:
    driver.may_go.set()

    async def enqueue_all() -> list[Enqueued]:
        return await asyncio.gather(*(client.aenqueue(request()) for _ in range(N)))

    answers = run(enqueue_all())

    assert driver.sizes == [N]
    assert driver.stored() == sorted(answer.id for answer in answers)


def test_coroutines_that_enqueue_while_the_flusher_is_in_the_store_go_out_together(
    client: Client, driver: Gated
) -> None:
    async def enqueue_all() -> None:
        tasks = [asyncio.create_task(client.aenqueue(request()))]
        await has(driver.has_begun)
        for _ in range(N - 1):
            tasks.append(asyncio.create_task(client.aenqueue(request())))
            await asyncio.sleep(0)
        driver.may_go.set()
        await asyncio.gather(*tasks)

    run(enqueue_all())

    assert driver.sizes[0] == 1
    assert sum(driver.sizes) == N
    assert len(driver.sizes) <= 3
    assert {each.name for each in driver.threads} == {"taskharbor-group-commit"}


def test_two_event_loops_share_a_statement_and_each_is_answered_at_home(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    blocking = pool.submit(run, client.aenqueue(request()))
    assert driver.has_begun.wait(LIMIT)

    async def enqueue_three() -> list[Enqueued]:
        return await asyncio.gather(*(client.aenqueue(request()) for _ in range(3)))

    both = [pool.submit(run, enqueue_three()) for _ in range(2)]
    flusher = client._async_group_commit  # noqa: SLF001  nobody but a test asks who waits
    assert flusher is not None
    wait_until(lambda: len(flusher._handed) == 6)  # noqa: SLF001  as above
    driver.may_go.set()

    ids = [answer.id for each in both for answer in each.result(LIMIT)]
    assert driver.sizes == [1, 6]
    assert driver.stored() == sorted([*ids, blocking.result(LIMIT).id])


class Counting(asyncio.SelectorEventLoop):
    """Counts how often another thread wakes it."""

    woken = 0

    def call_soon_threadsafe(  # type: ignore[override]  # whatever it is called with, it is passed on
        self, *how: Any, **named: Any
    ) -> asyncio.Handle:
        self.woken += 1
        return super().call_soon_threadsafe(*how, **named)


def test_a_loop_is_woken_once_for_all_that_was_stored_at_once(client: Client, driver: Gated) -> None:
    driver.may_go.set()

    async def enqueue_all() -> int:
        await asyncio.gather(*(client.aenqueue(request()) for _ in range(N)))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Counting)
        return loop.woken

    with asyncio.Runner(loop_factory=Counting) as runner:
        assert runner.run(enqueue_all()) == 1


def test_a_cancelled_coroutine_harms_no_other_one(client: Client, driver: Gated) -> None:
    async def enqueue_and_cancel() -> list[Enqueued]:
        under_way = asyncio.create_task(client.aenqueue(request(type="under.way")))
        await has(driver.has_begun)
        waiting, other = (asyncio.create_task(client.aenqueue(request(type=name))) for name in ("waiting", "other"))
        await asyncio.sleep(0)
        under_way.cancel()
        waiting.cancel()
        await asyncio.wait([under_way, waiting])
        driver.may_go.set()
        return [await other]

    [answer] = run(enqueue_and_cancel())

    jobs = driver.inspector.get(driver.stored()).values()
    assert sorted(job.type for job in jobs) == ["other", "under.way"]
    assert answer.id in {job.id for job in jobs}


def test_a_hook_is_told_of_a_job_that_is_stored_after_its_coroutine_was_cancelled(driver: Gated) -> None:
    told: list[HookEvent] = []

    async def enqueue_and_cancel(client: Client) -> None:
        task = asyncio.create_task(client.aenqueue(request()))
        await has(driver.has_begun)
        task.cancel()
        await asyncio.wait([task])
        driver.may_go.set()
        await client.aenqueue(request())

    with closing(Client(driver, hooks=[told.append])) as watched:
        run(enqueue_and_cancel(watched))

    assert {fact.job_id for fact in told if isinstance(fact, JobEnqueued)} == {*driver.stored()}
    assert len(told) == 2


def test_a_hook_is_told_once_and_in_the_context_of_the_coroutine(driver: Gated) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    told: list[str] = []
    driver.may_go.set()

    async def enqueue_for(name: str, client: Client) -> None:
        tenant.set(name)
        await client.aenqueue(request())

    async def enqueue_all(client: Client) -> None:
        await asyncio.gather(enqueue_for("acme", client), enqueue_for("zenith", client))

    with closing(Client(driver, hooks=[lambda _: told.append(tenant.get())])) as watched:
        run(enqueue_all(watched))

    assert sorted(told) == ["acme", "zenith"]


def test_only_the_guilty_one_of_many_coroutines_fails(client: Client, driver: Gated) -> None:
    driver.may_go.set()

    def refuse_poison(jobs: Sequence[NewJob]) -> None:
        if any(job.type == "poison" for job in jobs):
            raise ValueError("poison")

    driver.fail = refuse_poison

    async def enqueue_all() -> list[Enqueued | BaseException]:
        types = ("greet", "poison", "greet")
        return await asyncio.gather(*(client.aenqueue(request(type=each)) for each in types), return_exceptions=True)

    answers = run(enqueue_all())

    assert [type(answer) for answer in answers] == [Enqueued, ValueError, Enqueued]
    assert len(driver.stored()) == 2


@pytest.mark.parametrize(
    ("error", "met"), [(StoreUnavailable("no route"), StoreUnavailable), (SystemExit(), RuntimeError)]
)
def test_what_the_store_raises_is_raised_in_every_coroutine_and_the_next_ones_fare_better(
    client: Client, driver: Gated, error: BaseException, met: type[Exception]
) -> None:
    driver.may_go.set()

    def break_down(_: Sequence[NewJob]) -> None:
        raise error

    async def enqueue_all() -> list[Enqueued | BaseException]:
        return await asyncio.gather(*(client.aenqueue(request()) for _ in range(3)), return_exceptions=True)

    driver.fail = break_down
    failed = run(enqueue_all())
    driver.fail = lambda _: None
    answers = run(enqueue_all())

    assert [type(each) for each in failed] == 3 * [met]
    assert [type(each) for each in answers] == 3 * [Enqueued]


def test_where_no_thread_can_be_started_coroutines_are_told_and_nothing_is_stored(
    client: Client, driver: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.may_go.set()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def enqueue_both() -> list[Enqueued | BaseException]:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            both = [client.aenqueue(request()), client.aenqueue(request(idempotency_key="k"))]
            return await asyncio.gather(*both, return_exceptions=True)

    failed = run(enqueue_both())
    run(client.aenqueue(request()))

    assert [type(each) for each in failed] == 2 * [RuntimeError]
    assert len(driver.stored()) == 1


def test_a_coroutine_with_a_key_waits_alone(client: Client, driver: Gated) -> None:
    may_end = threading.Event()
    driver.may_go.set()

    def hold_key(jobs: Sequence[NewJob]) -> None:
        assert jobs[0].idempotency_key is None or may_end.wait(LIMIT)

    driver.fail = hold_key

    async def enqueue_both() -> tuple[Enqueued, bool]:
        keyed = asyncio.create_task(client.aenqueue(request(idempotency_key="k")))
        plain = await client.aenqueue(request())
        is_waiting = not keyed.done()
        may_end.set()
        await keyed
        return plain, is_waiting

    _, is_waiting = run(enqueue_both())

    assert is_waiting
    assert driver.sizes == [1, 1]


def test_a_key_that_belongs_to_another_job_is_refused_to_a_coroutine(client: Client, driver: Gated) -> None:
    driver.may_go.set()
    held = client.enqueue(request(idempotency_key="k", payload=1))

    with pytest.raises(IdempotencyConflict) as caught:
        run(client.aenqueue(request(idempotency_key="k", payload=2)))
    again = run(client.aenqueue(request(idempotency_key="k", payload=1)))

    assert caught.value.holder == held.id
    assert again == Enqueued(held.id, existed=True)


def test_a_coroutine_enqueues_many_in_one_statement_of_their_own(client: Client, driver: Gated) -> None:
    driver.may_go.set()

    answers = run(client.aenqueue_many(request(payload=number) for number in range(50)))

    assert driver.sizes == [50]
    stored = driver.inspector.get([answer.id for answer in answers])
    assert [stored[answer.id].data for answer in answers] == [*range(50)]


def test_of_many_from_a_coroutine_too_some_can_be_refused_and_a_broken_rule_stops_all(
    client: Client, driver: Gated
) -> None:
    driver.may_go.set()
    client.enqueue(request(idempotency_key="k", payload=1))

    with pytest.raises(EnqueueRefused):
        run(client.aenqueue_many([request(), request(idempotency_key="k", payload=2)]))
    with pytest.raises(InvalidRequest):
        run(client.aenqueue_many([request(), request(queue="e mail")]))

    assert len(driver.stored()) == 2


def test_on_the_memory_store_a_coroutine_enqueues_without_any_thread() -> None:
    driver = MemoryDriver()

    answer = run(Client(driver).aenqueue(request()))

    assert answer.id in driver.inspector.get([answer.id])
    assert flushers() == []


def test_closing_a_client_ends_its_threads_and_not_its_driver(driver: Gated) -> None:
    driver.may_go.set()
    client = Client(driver)
    run(client.aenqueue(request()))
    run(client.aenqueue(request(idempotency_key="k")))

    client.close()

    assert flushers() == []
    assert not run(client.aenqueue(request())).existed
    client.close()
    client.close()


def test_the_threads_of_a_client_that_nobody_uses_end_by_themselves_and_come_back(
    client: Client, driver: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "IDLE_SECONDS", 0.01)
    driver.may_go.set()

    run(client.aenqueue(request()))

    wait_until(lambda: flushers() == [])
    assert not run(client.aenqueue(request())).existed


def flushers() -> list[str]:
    names = [each.name for each in threading.enumerate()]
    return [
        name
        for name in names
        if name in {"taskharbor-group-commit", "taskharbor-keyed-insert", "taskharbor-batch-insert"}
    ]


def test_what_was_handed_over_is_stored_before_a_client_is_closed(driver: Gated, pool: ThreadPoolExecutor) -> None:
    client = Client(driver)

    async def enqueue_and_close() -> Enqueued:
        task = asyncio.create_task(client.aenqueue(request()))
        await has(driver.has_begun)
        closing_it = pool.submit(client.close)
        driver.may_go.set()
        await asyncio.to_thread(closing_it.result, LIMIT)
        return await task

    assert run(enqueue_and_close()).id in driver.stored()


def test_a_child_of_a_fork_has_a_flusher_of_its_own(client: Client, driver: Gated) -> None:
    driver.may_go.set()
    run(client.aenqueue(request()))

    code = in_a_child(lambda: run(client.aenqueue(request(type="child"))))

    assert code == 0
    assert not run(client.aenqueue(request())).existed
    assert len(driver.stored()) == 3
