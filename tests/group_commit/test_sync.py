"""Group commit: jobs of concurrent callers share a statement, and no caller is harmed by another."""

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
from taskharbor.core.hooks import JobsEnqueued
from taskharbor.core.results import JobFilter
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.group_commit import aio, sync
from tests.support.fork import in_a_child
from tests.support.postgres import emptied
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

    from taskharbor.core.hooks import HookEvent
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import NewJob

N: Final = 32


class Gated(PostgresDriver):
    """A driver whose first insert waits for ``may_go``, and whose inserts can be made to fail."""

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
            assert self.may_go.wait(LIMIT_SECONDS)
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
def long_leader_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a slow machine a leader must not time out.
    monkeypatch.setattr(sync, "LEADER_TIMEOUT_SECONDS", LIMIT_SECONDS)


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
    return len(client._group_commit._waiting)  # noqa: SLF001  only tests count the waiters


def with_waiters(
    client: Client, driver: Gated, pool: ThreadPoolExecutor, *others: JobRequest
) -> tuple[Future[Enqueued], list[Future[Enqueued]]]:
    """Enqueue one job, whose insert waits in the store, then *others* in this order; they wait for it."""
    first = pool.submit(client.enqueue, request())
    assert driver.has_begun.wait(LIMIT_SECONDS)
    behind = []
    for place, each in enumerate(others):
        behind.append(pool.submit(client.enqueue, each))
        wait_until(lambda place=place: waiting(client) == place + 1)  # type: ignore[misc]
    return first, behind


@contextmanager
def interrupted_by(handle: Callable[[], None]) -> Iterator[Callable[[], float]]:
    """Yield a function that makes the main thread call *handle* in a signal handler, once."""
    assert threading.current_thread() is threading.main_thread()
    begun: list[bool] = []

    def on_signal(*_: Any) -> None:
        if not begun:
            begun.append(True)
            handle()

    def interrupt() -> bool:
        if not begun:  # repeated: a signal that arrives just before the thread blocks is handled only when it wakes
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return bool(begun)

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        yield partial(wait_until, interrupt)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_threads_that_enqueue_during_an_insert_share_the_next_statement(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    first, behind = with_waiters(client, driver, pool, *[request()] * (N - 1))

    driver.may_go.set()

    answers = [each.result(LIMIT_SECONDS) for each in (first, *behind)]
    assert driver.sizes == [1, N - 1]
    assert driver.stored() == sorted(answer.id for answer in answers)
    assert not any(answer.existed for answer in answers)


def test_each_caller_returns_only_after_its_own_commit(driver: Gated, pool: ThreadPoolExecutor) -> None:
    client = Client(driver)

    def enqueue_and_get(_: int) -> bool:
        enqueued = client.enqueue(request())
        return enqueued.id in driver.inspector.get([enqueued.id])

    driver.may_go.set()
    assert all(pool.map(enqueue_and_get, range(5 * N), timeout=LIMIT_SECONDS))


def test_a_single_caller_inserts_immediately_in_its_own_thread(client: Client, driver: Gated) -> None:
    driver.may_go.set()

    client.enqueue(request())
    client.enqueue(request())

    assert driver.threads == 2 * [threading.current_thread()]


def test_a_batch_is_inserted_by_one_of_its_own_callers(client: Client, driver: Gated, pool: ThreadPoolExecutor) -> None:
    first, behind = with_waiters(client, driver, pool, *[request()] * 3)

    driver.may_go.set()

    wait_for([first, *behind])
    assert driver.threads[0] is not driver.threads[1]
    assert all(each.name.startswith("ThreadPoolExecutor") for each in driver.threads)


def test_a_leader_lingers_until_the_expected_callers_have_come(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    first, behind = with_waiters(client, driver, pool, *[request()] * 3)
    driver.may_go.set()
    wait_for([first, *behind])
    client._group_commit._expected, client._group_commit._linger_seconds = 4, LIMIT_SECONDS  # noqa: SLF001  long enough for any machine

    leader = pool.submit(client.enqueue, request())
    wait_until(lambda: client._group_commit._lingering is not None)  # noqa: SLF001  as above
    others = [pool.submit(client.enqueue, request()) for _ in range(3)]

    wait_for([leader, *others])
    assert driver.sizes == [1, 3, 4]


def test_a_single_caller_lingers_only_once_after_a_large_batch(client: Client, driver: Gated) -> None:
    driver.may_go.set()
    client._group_commit._expected = 32  # noqa: SLF001  as after a large batch

    client.enqueue(request())
    client._group_commit._linger_seconds = LIMIT_SECONDS  # noqa: SLF001  lingering would exceed the limit of this test

    client.enqueue(request())
    assert driver.sizes == [1, 1]


def wait_for(callers: Sequence[Future[Enqueued]]) -> None:
    for each in callers:
        each.result(LIMIT_SECONDS)


def test_a_batch_has_a_bounded_number_of_jobs(
    client: Client, driver: Gated, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "MAX_BATCH_JOBS", 10)
    first, behind = with_waiters(client, driver, pool, *[request()] * 25)

    driver.may_go.set()

    answers = [each.result(LIMIT_SECONDS) for each in (first, *behind)]
    assert driver.sizes == [1, 10, 10, 5]
    assert driver.stored() == sorted(answer.id for answer in answers)


def test_a_batch_has_a_bounded_number_of_bytes_or_one_job(
    client: Client, driver: Gated, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "MAX_BATCH_BYTES", 100)
    payloads = ["small", "small", "x" * 90, "x" * 200, "small"]
    first, behind = with_waiters(client, driver, pool, *(request(payload=each) for each in payloads))

    driver.may_go.set()

    wait_for([first, *behind])
    assert driver.sizes == [1, 2, 1, 1, 1]


def test_an_invalid_request_is_refused_before_it_waits(client: Client, driver: Gated, pool: ThreadPoolExecutor) -> None:
    with_waiters(client, driver, pool)

    with pytest.raises(InvalidRequest):
        client.enqueue(request(queue="e mail"))

    assert driver.sizes == [1]


def test_only_the_job_that_causes_an_error_fails_in_a_batch(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    def refuse_poison(jobs: Sequence[NewJob]) -> None:
        if any(job.type == "poison" for job in jobs):
            raise ValueError("poison")

    driver.fail = refuse_poison
    first, behind = with_waiters(client, driver, pool, request(), request(type="poison"), request())

    driver.may_go.set()

    with pytest.raises(ValueError, match="poison"):
        behind[1].result(LIMIT_SECONDS)
    stored = [each.result(LIMIT_SECONDS) for each in (first, behind[0], behind[2])]
    assert driver.stored() == sorted(answer.id for answer in stored)


def test_an_error_after_the_commit_duplicates_no_job(client: Client, driver: Gated, pool: ThreadPoolExecutor) -> None:
    def break_many(jobs: Sequence[NewJob]) -> None:
        if len(jobs) > 1:
            raise ValueError("the notification failed")

    driver.fail_late = break_many
    first, behind = with_waiters(client, driver, pool, *[request()] * 3)

    driver.may_go.set()

    answers = [each.result(LIMIT_SECONDS) for each in (first, *behind)]
    assert driver.stored() == sorted(answer.id for answer in answers)


def test_an_unavailable_store_fails_each_caller_of_the_batch_after_one_repeat(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    first, behind = with_waiters(client, driver, pool, *[request()] * 3)

    def be_unavailable(jobs: Sequence[NewJob]) -> None:
        if len(jobs) > 1:
            raise StoreUnavailable("no route")

    driver.fail = be_unavailable
    driver.may_go.set()

    errors = [each.exception(LIMIT_SECONDS) for each in behind]
    assert [str(error) for error in errors] == 3 * ["store unavailable: no route"]
    assert len(set(map(id, errors))) == 3
    assert not first.result(LIMIT_SECONDS).existed
    assert driver.batches[1] == driver.batches[2]
    assert driver.repeats == [False, False, True]


def test_each_caller_of_the_batch_gets_the_retry_time(client: Client, driver: Gated, pool: ThreadPoolExecutor) -> None:
    _, behind = with_waiters(client, driver, pool, *[request()] * 3)

    def be_unavailable(jobs: Sequence[NewJob]) -> None:
        if len(jobs) > 1:
            raise StoreUnavailable("gone", retry_in=timedelta(seconds=1))

    driver.fail = be_unavailable
    driver.may_go.set()

    errors = [each.exception(LIMIT_SECONDS) for each in behind]
    assert [str(error) for error in errors] == 3 * ["store unavailable: gone; try again in 1 s"]
    assert driver.repeats == [False, False]


def test_single_inserts_after_a_batch_error_stop_when_the_store_is_unavailable(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    def fail_then_be_unavailable(jobs: Sequence[NewJob]) -> None:
        if len(jobs) > 1:
            raise ValueError("odd")
        if len(driver.batches) > 2:
            raise StoreUnavailable("no route")

    driver.fail = fail_then_be_unavailable
    _, behind = with_waiters(client, driver, pool, *[request()] * 10)

    driver.may_go.set()

    errors = [each.exception(LIMIT_SECONDS) for each in behind]
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
    first, behind = with_waiters(client, driver, pool, *[request()] * 3)

    driver.may_go.set()

    answers = [each.result(LIMIT_SECONDS) for each in (first, *behind)]
    assert driver.stored() == sorted(answer.id for answer in answers)


@pytest.mark.parametrize("stage", ["fail", "fail_late"])
def test_followers_of_an_interrupted_leader_are_stored_once(
    client: Client, driver: Gated, pool: ThreadPoolExecutor, stage: str
) -> None:
    interrupts = [KeyboardInterrupt()]

    def interrupt(jobs: Sequence[NewJob]) -> None:
        if len(jobs) > 1 and interrupts:
            raise interrupts.pop()

    setattr(driver, stage, interrupt)
    first, behind = with_waiters(client, driver, pool, *[request()] * 4)

    driver.may_go.set()

    assert isinstance(behind[0].exception(LIMIT_SECONDS), KeyboardInterrupt)
    answers = [each.result(LIMIT_SECONDS) for each in (first, *behind[1:])]
    assert driver.sizes == [1, 4, 3]
    assert driver.repeats == [False, False, True]
    assert {answer.id for answer in answers} <= {*driver.stored()}
    assert len(driver.stored()) == (5 if stage == "fail_late" else 4)


def test_ctrl_c_withdraws_a_waiting_job_and_delays_no_other(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    first, before = with_waiters(client, driver, pool, request())

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
        after = pressing.result(LIMIT_SECONDS)
    driver.may_go.set()

    for each in (first, *before, after):
        each.result(LIMIT_SECONDS)
    assert driver.sizes == [1, 2]
    assert "mine" not in {job.type for jobs in driver.batches for job in jobs}


def test_a_signal_handler_that_enqueues_does_not_wait_for_the_leader_it_interrupted(
    client: Client, driver: Gated, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "LEADER_TIMEOUT_SECONDS", 0.05)
    handled: list[Enqueued] = []

    def send_signal(interrupt: Callable[[], float]) -> None:
        assert driver.has_begun.wait(LIMIT_SECONDS)
        interrupt()
        wait_until(lambda: bool(handled))
        driver.may_go.set()

    with interrupted_by(lambda: handled.append(client.enqueue(request()))) as interrupt:
        sending = pool.submit(send_signal, interrupt)
        interrupted = client.enqueue(request())
        sending.result(LIMIT_SECONDS)

    assert driver.stored() == sorted([interrupted.id, handled[0].id])


def test_waiters_replace_a_leader_that_exceeds_its_timeout(
    client: Client, driver: Gated, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, behind = with_waiters(client, driver, pool)
    monkeypatch.setattr(sync, "LEADER_TIMEOUT_SECONDS", 0.05)

    behind = [pool.submit(client.enqueue, request()) for _ in range(3)]

    for each in behind:
        each.result(LIMIT_SECONDS)
    assert not first.done()


def test_a_follower_without_an_answer_gives_up_with_an_unknown_outcome(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "LEADER_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(sync, "GIVE_UP_SECONDS", 0.05)
    # As if a leader had disappeared without finishing its batch.
    monkeypatch.setattr(sync.GroupCommit, "_may_start", lambda _: False)
    monkeypatch.setattr(client._group_commit, "_expected", 2)  # noqa: SLF001  it has no public name

    with pytest.raises(StoreUnavailable, match="leader that inserts this job did not answer within"):
        client.enqueue(request())

    assert waiting(client) == 0


def test_a_job_with_a_key_is_inserted_alone_and_does_not_wait(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    first, behind = with_waiters(client, driver, pool, request())

    keyed = client.enqueue(request(idempotency_key="k"))

    assert not first.done()
    assert not behind[0].done()
    assert [job.id for job in driver.batches[1]] == [keyed.id]


def test_callers_without_a_key_do_not_wait_for_a_held_key(driver: Gated, pool: ThreadPoolExecutor) -> None:
    client = Client(driver)
    driver.may_go.set()
    with psycopg.connect(emptied()) as db, db.transaction():
        Client(driver.join(db)).enqueue(request(idempotency_key="held"))
        held = pool.submit(client.enqueue, request(idempotency_key="held"))
        wait_until(lambda: len(driver.batches) == 1)

        for _ in range(3):
            client.enqueue(request())

        assert not held.done()
    assert held.result(LIMIT_SECONDS).existed


def test_hooks_run_in_the_thread_of_the_jobs_own_caller(driver: Gated, pool: ThreadPoolExecutor) -> None:
    calls: list[tuple[HookEvent, threading.Thread]] = []
    client = Client(driver, hooks=[lambda event: calls.append((event, threading.current_thread()))])
    first, behind = with_waiters(client, driver, pool, *[request()] * 3)

    driver.may_go.set()

    ids = {each.result(LIMIT_SECONDS).id for each in (first, *behind)}
    assert {each.id for event, _ in calls if isinstance(event, JobsEnqueued) for each in event.results} == ids
    assert len({thread for _, thread in calls}) == 4


class WithoutGroupCommit(MemoryDriver):
    """A driver without group commit, whose first insert waits for ``may_go``."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_go = threading.Event(), threading.Event()

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        if not self.has_begun.is_set():
            self.has_begun.set()
            assert self.may_go.wait(LIMIT_SECONDS)
        return super().insert(jobs, repeat=repeat)


def test_without_group_commit_each_caller_inserts_its_own_job(pool: ThreadPoolExecutor) -> None:
    driver = WithoutGroupCommit()
    client = Client(driver)
    first = pool.submit(client.enqueue, request())
    assert driver.has_begun.wait(LIMIT_SECONDS)

    client.enqueue(request())

    assert not first.done()
    driver.may_go.set()
    assert not first.result(LIMIT_SECONDS).existed


def test_a_job_in_a_memory_transaction_is_rolled_back_with_it() -> None:
    driver = MemoryDriver()
    client = Client(driver)

    with suppress(ZeroDivisionError), driver.transaction():
        client.enqueue(request())
        raise ZeroDivisionError

    assert not driver.inspector.find(JobFilter(), limit=1).jobs


def test_a_client_of_a_joined_transaction_inserts_in_it_immediately(driver: Gated) -> None:
    with psycopg.connect(emptied()) as db, db.transaction():
        enqueued = Client(driver.join(db)).enqueue(request())

        assert db.execute("SELECT id FROM th_jobs").fetchall() == [(enqueued.id,)]
        assert driver.stored() == []


def test_concurrent_threads_enqueue_on_sqlite(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with closing(SqliteDriver(tmp_path / "jobs.db")) as driver:
        client = Client(driver)

        answers = list(pool.map(lambda _: client.enqueue(request()), range(5 * N), timeout=LIMIT_SECONDS))

        assert driver.inspector.get([answer.id for answer in answers]).keys() == {answer.id for answer in answers}


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(
    client: Client, driver: Gated, pool: ThreadPoolExecutor
) -> None:
    first, behind = with_waiters(client, driver, pool, request())

    code = in_a_child(lambda: client.enqueue(request(type="child")))

    driver.may_go.set()
    wait_for([first, *behind])
    assert code == 0
    assert len(driver.stored()) == 3


async def has(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, LIMIT_SECONDS)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def timed() -> Any:
        async with asyncio.timeout(LIMIT_SECONDS):
            return await work

    return asyncio.run(timed())


def test_coroutines_of_one_loop_iteration_share_a_statement(client: Client, driver: Gated) -> None:
    driver.may_go.set()

    async def enqueue_all() -> list[Enqueued]:
        return await asyncio.gather(*(client.aenqueue(request()) for _ in range(N)))

    answers = run(enqueue_all())

    assert driver.sizes == [N]
    assert driver.stored() == sorted(answer.id for answer in answers)


def test_coroutines_that_enqueue_during_an_insert_share_a_statement(client: Client, driver: Gated) -> None:
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


def test_two_event_loops_share_a_statement(client: Client, driver: Gated, pool: ThreadPoolExecutor) -> None:
    blocking = pool.submit(run, client.aenqueue(request()))
    assert driver.has_begun.wait(LIMIT_SECONDS)

    async def enqueue_three() -> list[Enqueued]:
        return await asyncio.gather(*(client.aenqueue(request()) for _ in range(3)))

    both = [pool.submit(run, enqueue_three()) for _ in range(2)]
    group_commit = client._async_group_commit  # noqa: SLF001  only tests count the waiters
    assert group_commit is not None
    wait_until(lambda: len(group_commit._waiting) == 6)  # noqa: SLF001  as above
    driver.may_go.set()

    ids = [answer.id for each in both for answer in each.result(LIMIT_SECONDS)]
    assert driver.sizes == [1, 6]
    assert driver.stored() == sorted([*ids, blocking.result(LIMIT_SECONDS).id])


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts how often another thread wakes it."""

    woken = 0

    def call_soon_threadsafe(  # type: ignore[override]  # all arguments are passed on
        self, *args: Any, **kwargs: Any
    ) -> asyncio.Handle:
        self.woken += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def test_a_loop_is_woken_once_per_batch(client: Client, driver: Gated) -> None:
    driver.may_go.set()

    async def enqueue_all() -> int:
        await asyncio.gather(*(client.aenqueue(request()) for _ in range(N)))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        return loop.woken

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(enqueue_all()) == 1


def test_a_canceled_coroutine_does_not_affect_others(client: Client, driver: Gated) -> None:
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


def test_a_hook_is_called_for_a_job_whose_coroutine_was_canceled(driver: Gated) -> None:
    events: list[HookEvent] = []

    async def enqueue_and_cancel(client: Client) -> None:
        task = asyncio.create_task(client.aenqueue(request()))
        await has(driver.has_begun)
        task.cancel()
        await asyncio.wait([task])
        driver.may_go.set()
        await client.aenqueue(request())

    with closing(Client(driver, hooks=[events.append])) as watched:
        run(enqueue_and_cancel(watched))

    stored = {job.id for event in events if isinstance(event, JobsEnqueued) for job in event.jobs}
    assert stored == {*driver.stored()}
    assert len(events) == 2


def test_a_hook_is_called_once_in_the_context_of_the_coroutine(driver: Gated) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="none")
    tenants: list[str] = []
    driver.may_go.set()

    async def enqueue_for(name: str, client: Client) -> None:
        tenant.set(name)
        await client.aenqueue(request())

    async def enqueue_all(client: Client) -> None:
        await asyncio.gather(enqueue_for("acme", client), enqueue_for("zenith", client))

    with closing(Client(driver, hooks=[lambda _: tenants.append(tenant.get())])) as watched:
        run(enqueue_all(watched))

    assert sorted(tenants) == ["acme", "zenith"]


def test_only_the_coroutine_whose_job_causes_an_error_fails(client: Client, driver: Gated) -> None:
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
    ("error", "raised"), [(StoreUnavailable("no route"), StoreUnavailable), (SystemExit(), RuntimeError)]
)
def test_a_store_error_is_raised_in_every_coroutine_and_later_inserts_succeed(
    client: Client, driver: Gated, error: BaseException, raised: type[Exception]
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

    assert [type(each) for each in failed] == 3 * [raised]
    assert [type(each) for each in answers] == 3 * [Enqueued]


def test_coroutines_fail_and_store_nothing_if_no_thread_can_start(
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


def test_a_coroutine_that_waits_for_a_key_delays_no_other(client: Client, driver: Gated) -> None:
    may_end = threading.Event()
    driver.may_go.set()

    def hold_key(jobs: Sequence[NewJob]) -> None:
        assert jobs[0].idempotency_key is None or may_end.wait(LIMIT_SECONDS)

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


def test_aenqueue_many_uses_one_statement_of_its_own(client: Client, driver: Gated) -> None:
    driver.may_go.set()

    answers = run(client.aenqueue_many(request(payload=number) for number in range(50)))

    assert driver.sizes == [50]
    stored = driver.inspector.get([answer.id for answer in answers])
    assert [stored[answer.id].data for answer in answers] == [*range(50)]


def test_aenqueue_many_refuses_conflicts_singly_and_invalid_requests_together(client: Client, driver: Gated) -> None:
    driver.may_go.set()
    client.enqueue(request(idempotency_key="k", payload=1))

    with pytest.raises(EnqueueRefused):
        run(client.aenqueue_many([request(), request(idempotency_key="k", payload=2)]))
    with pytest.raises(InvalidRequest):
        run(client.aenqueue_many([request(), request(queue="e mail")]))

    assert len(driver.stored()) == 2


def test_aenqueue_on_the_memory_store_starts_no_thread() -> None:
    driver = MemoryDriver()

    answer = run(Client(driver).aenqueue(request()))

    assert answer.id in driver.inspector.get([answer.id])
    assert insert_threads() == []


def test_closing_a_client_ends_its_threads_and_not_its_driver(driver: Gated) -> None:
    driver.may_go.set()
    client = Client(driver)
    run(client.aenqueue(request()))
    run(client.aenqueue(request(idempotency_key="k")))

    client.close()

    assert insert_threads() == []
    assert not run(client.aenqueue(request())).existed
    client.close()
    client.close()


def test_idle_threads_of_a_client_end_and_are_started_again(
    client: Client, driver: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "IDLE_SECONDS", 0.01)
    driver.may_go.set()

    run(client.aenqueue(request()))

    wait_until(lambda: insert_threads() == [])
    assert not run(client.aenqueue(request())).existed


def insert_threads() -> list[str]:
    names = [each.name for each in threading.enumerate()]
    return [
        name
        for name in names
        if name in {"taskharbor-group-commit", "taskharbor-keyed-insert", "taskharbor-batch-insert"}
    ]


def test_closing_a_client_stores_submitted_jobs_first(driver: Gated, pool: ThreadPoolExecutor) -> None:
    client = Client(driver)

    async def enqueue_and_close() -> Enqueued:
        task = asyncio.create_task(client.aenqueue(request()))
        await has(driver.has_begun)
        closing_it = pool.submit(client.close)
        driver.may_go.set()
        await asyncio.to_thread(closing_it.result, LIMIT_SECONDS)
        return await task

    assert run(enqueue_and_close()).id in driver.stored()


def test_a_forked_child_has_its_own_async_group_commit(client: Client, driver: Gated) -> None:
    driver.may_go.set()
    run(client.aenqueue(request()))

    code = in_a_child(lambda: run(client.aenqueue(request(type="child"))))

    assert code == 0
    assert not run(client.aenqueue(request())).existed
    assert len(driver.stored()) == 3
