"""Waiting for jobs without a thread or a connection per wait."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor import Client, JobRequest, MemoryDriver, Status
from taskharbor.core.errors import JobNotFound, ResultTimeout, StoreUnavailable
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import Progress
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.watcher import MAX_POLL_JOBS, MAX_POLL_SECONDS, JobWatcher
from tests.support.fork import in_a_child
from tests.support.postgres import emptied
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim, Job, JobSummary
    from taskharbor.drivers.base import Driver

LONG: Final = timedelta(seconds=LIMIT_SECONDS)
SHORT: Final = timedelta(seconds=0.1)
ENOUGH: Final = timedelta(seconds=2)  # for a read of the store, also on a busy machine


class CountingInspector:
    """An inspector that counts reads and can raise an error."""

    def __init__(self, inspector: Any) -> None:
        self._inspector = inspector
        self.asked: list[int] = []
        self.read_whole: list[list[JobId]] = []
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inspector, name)

    def summaries(self, job_ids: Sequence[JobId]) -> dict[JobId, JobSummary]:
        self.asked.append(len(job_ids))
        if self.error is not None:
            raise self.error
        jobs: dict[JobId, JobSummary] = self._inspector.summaries(job_ids)
        return jobs

    def get(self, job_ids: Sequence[JobId]) -> dict[JobId, Job]:
        self.read_whole.append([*job_ids])
        jobs: dict[JobId, Job] = self._inspector.get(job_ids)
        return jobs


@pytest.fixture
def driver() -> MemoryDriver:
    return MemoryDriver()


@pytest.fixture
def inspector(driver: MemoryDriver) -> CountingInspector:
    return CountingInspector(driver.inspector)


@pytest.fixture
def watcher(inspector: CountingInspector) -> Iterator[JobWatcher]:
    with closing(JobWatcher(inspector)) as watcher:
        yield watcher


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def enqueued(driver: Driver) -> JobId:
    return Client(driver).enqueue(JobRequest(type="greet")).id


def claimed(driver: Driver, *, count: int = 1) -> list[Claim]:
    token = new_token()
    return driver.reserve("default", token=token, worker="w", lease=LONG, limit=count, overdue_after=LONG)


def done(driver: Driver, *, count: int = 1) -> None:
    driver.settle([Settlement(claim.lease, Outcome.ack()) for claim in claimed(driver, count=count)])


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def timed() -> Any:
        async with asyncio.timeout(LIMIT_SECONDS):
            return await work

    return asyncio.run(timed())


def watchers() -> int:
    return sum(each.name == "taskharbor-watcher" for each in threading.enumerate())


@pytest.mark.parametrize("ends_before", [True, False])
def test_a_wait_ends_with_the_job(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher, pool: ThreadPoolExecutor, ends_before: bool
) -> None:
    job_id = enqueued(driver)
    if ends_before:
        done(driver)

    waiting = pool.submit(watcher.wait, job_id, LONG)
    if not ends_before:
        wait_until(lambda: len(inspector.asked) > 1)
        assert not waiting.done()
        done(driver)

    job = waiting.result(LIMIT_SECONDS)
    assert (job.id, job.status) == (job_id, Status.SUCCEEDED)


@pytest.mark.parametrize("end", [Outcome.ack(), Outcome.fail("broken"), Outcome.cancel()])
def test_every_final_state_ends_a_wait(driver: MemoryDriver, watcher: JobWatcher, end: Outcome) -> None:
    job_id = enqueued(driver)
    [claim] = claimed(driver)
    driver.settle([Settlement(claim.lease, end)])

    assert watcher.wait(job_id, LONG).status.is_final
    assert run(watcher.await_final(job_id, LONG)).status.is_final


def test_a_wait_that_times_out_says_what_the_job_waits_for(driver: MemoryDriver, watcher: JobWatcher) -> None:
    job_id = enqueued(driver)

    with pytest.raises(ResultTimeout) as caught:
        watcher.wait(job_id, SHORT)
    with pytest.raises(ResultTimeout) as caught_async:
        run(watcher.await_final(job_id, SHORT))

    expected = (job_id, SHORT, Status.PENDING, "no live worker serves queue 'default': start one")
    assert caught.value.args == caught_async.value.args == expected


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1)])
def test_a_zero_timeout_ends_at_once(driver: MemoryDriver, watcher: JobWatcher, timeout: timedelta) -> None:
    job_id = enqueued(driver)

    with pytest.raises(ResultTimeout):
        watcher.wait(job_id, timeout)
    with pytest.raises(ResultTimeout):
        run(watcher.await_final(job_id, timeout))


def test_waiting_for_an_unknown_job_raises_job_not_found(watcher: JobWatcher) -> None:
    with pytest.raises(JobNotFound):
        watcher.wait(new_job_id(), LONG)
    with pytest.raises(JobNotFound):
        run(watcher.await_final(new_job_id(), LONG))


def test_a_thousand_waits_use_one_thread_and_few_statements(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher
) -> None:
    Client(driver).enqueue_many(JobRequest(type="greet") for _ in range(1_000))
    claims = claimed(driver, count=1_000)
    threads: list[int] = []
    statements: list[int] = []

    async def wait_for_all() -> list[Job]:
        tasks = [asyncio.create_task(watcher.await_final(claim.job.id, LONG)) for claim in claims]
        await asyncio.to_thread(wait_until, lambda: sum(inspector.asked) >= 5 * len(claims))
        threads.append(watchers())
        statements.append(len(inspector.asked))
        driver.settle([Settlement(claim.lease, Outcome.ack()) for claim in claims])
        return await asyncio.gather(*tasks)

    jobs = run(wait_for_all())

    assert {job.id for job in jobs} == {claim.job.id for claim in claims}
    assert threads == [1]
    assert max(inspector.asked) <= MAX_POLL_JOBS
    assert statements[0] < 30


def test_payloads_are_read_once_when_a_job_has_ended(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher
) -> None:
    first, second = enqueued(driver), enqueued(driver)

    async def wait_for_both() -> tuple[Job, JobSummary]:
        tasks = asyncio.gather(watcher.await_final(first, LONG), watcher.await_end(second, LONG))
        await asyncio.to_thread(wait_until, lambda: len(inspector.asked) > 3)
        assert inspector.read_whole == []
        done(driver, count=2)
        return await tasks

    whole, summary = run(wait_for_both())

    assert (whole, summary) == (driver.inspector.get([first])[first], driver.inspector.summaries([second])[second])
    assert inspector.read_whole == [[first]]


def test_a_job_removed_before_its_payload_is_read_is_not_found(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = enqueued(driver)
    driver.cancel([job_id])
    monkeypatch.setattr(inspector, "get", lambda _job_ids: {})

    with pytest.raises(JobNotFound):
        watcher.wait(job_id, LONG)


def test_waiters_that_start_at_different_times_are_eventually_polled_together(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher
) -> None:
    jobs = [enqueued(driver) for _ in range(50)]

    async def wait_for_all() -> None:
        tasks = []
        for job_id in jobs:
            tasks.append(asyncio.create_task(watcher.await_final(job_id, LONG)))
            await asyncio.sleep(0.005)
        await asyncio.to_thread(wait_until, lambda: len(jobs) in inspector.asked)
        done(driver, count=len(jobs))
        await asyncio.gather(*tasks)

    run(wait_for_all())


def test_several_waits_for_one_job_read_one_id_and_all_end(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher
) -> None:
    job_id = enqueued(driver)

    async def wait_for_it() -> list[Job]:
        tasks = [asyncio.create_task(watcher.await_final(job_id, LONG)) for _ in range(20)]
        await asyncio.to_thread(wait_until, lambda: len(inspector.asked) > 1)
        done(driver)
        return await asyncio.gather(*tasks)

    jobs = run(wait_for_it())

    assert [job.id for job in jobs] == 20 * [job_id]
    assert {*inspector.asked} == {1}


def test_a_job_is_polled_soon_and_then_less_and_less_often(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher
) -> None:
    job_id = enqueued(driver)
    start = time.monotonic()

    with pytest.raises(ResultTimeout):
        watcher.wait(job_id, timedelta(seconds=1))

    # After 10, 30, 70, 150, 310, 560 and 810 ms, and at the timeout; a slow machine polls less often.
    assert 2 <= len(inspector.asked) <= 8 + (time.monotonic() - start - 1) / MAX_POLL_SECONDS


def test_a_new_wait_is_polled_soon_while_others_are_polled_rarely(
    driver: MemoryDriver,
    inspector: CountingInspector,
    watcher: JobWatcher,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taskharbor.watcher.MAX_POLL_SECONDS", LIMIT_SECONDS)
    never, soon = enqueued(driver), enqueued(driver)
    waiting = pool.submit(watcher.wait, never, LONG)
    wait_until(lambda: len(inspector.asked) >= 9)  # the next poll is 5.12 s away
    driver.cancel([soon])
    start = time.monotonic()

    watcher.wait(soon, LONG)

    assert time.monotonic() - start < 4
    driver.cancel([never])
    waiting.result(LIMIT_SECONDS)


def test_an_unavailable_store_is_reported_at_the_timeout_of_the_wait(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher, pool: ThreadPoolExecutor
) -> None:
    job_id = enqueued(driver)
    done(driver)
    inspector.error = StoreUnavailable("no route")

    with pytest.raises(StoreUnavailable, match="no route") as caught:
        watcher.wait(job_id, ENOUGH)
    with pytest.raises(StoreUnavailable, match="no route"):
        run(watcher.await_final(job_id, ENOUGH))
    patient = pool.submit(watcher.wait, job_id, LONG)
    wait_until(lambda: len(inspector.asked) > 5)
    inspector.error = None

    assert caught.value.__cause__ is not None
    assert patient.result(LIMIT_SECONDS).status is Status.SUCCEEDED


def test_any_other_error_ends_a_wait_at_once(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher
) -> None:
    job_id = enqueued(driver)
    inspector.error = ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        watcher.wait(job_id, LONG)
    with pytest.raises(ValueError, match="odd"):
        run(watcher.await_final(job_id, LONG))


def test_the_thread_runs_only_while_there_are_waiters(driver: MemoryDriver, watcher: JobWatcher) -> None:
    job_id = enqueued(driver)
    done(driver)

    for _ in range(3):
        watcher.wait(job_id, LONG)

        wait_until(lambda: watchers() == 0)


def test_a_cancelled_wait_is_removed(driver: MemoryDriver, watcher: JobWatcher) -> None:
    job_id = enqueued(driver)

    async def wait_and_cancel() -> None:
        task = asyncio.create_task(watcher.await_final(job_id, LONG))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.to_thread(wait_until, lambda: watchers() == 0)

    run(wait_and_cancel())


def test_closing_ends_current_and_later_waits_with_an_error(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher, pool: ThreadPoolExecutor
) -> None:
    job_id = enqueued(driver)
    waiting = pool.submit(watcher.wait, job_id, LONG)
    wait_until(lambda: len(inspector.asked) > 0)

    watcher.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        waiting.result(LIMIT_SECONDS)
    with pytest.raises(StoreUnavailable, match="closed"):
        watcher.wait(job_id, LONG)
    wait_until(lambda: watchers() == 0)


def test_coroutines_of_two_event_loops_share_one_watcher(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher, pool: ThreadPoolExecutor
) -> None:
    job_id = enqueued(driver)

    both = [pool.submit(run, watcher.await_final(job_id, LONG)) for _ in range(2)]
    wait_until(lambda: len(inspector.asked) > 1)
    done(driver)

    assert [each.result(LIMIT_SECONDS).id for each in both] == 2 * [job_id]


def test_a_forked_child_polls_in_its_own_thread(pool: ThreadPoolExecutor) -> None:
    with closing(PostgresDriver(emptied())) as driver:
        watcher = JobWatcher(driver.inspector)
        first, second = enqueued(driver), enqueued(driver)
        waiting = pool.submit(watcher.wait, first, LONG)
        wait_until(lambda: watchers() == 1)

        code = in_a_child(lambda: (driver.cancel([second]), watcher.wait(second, LONG)))

        driver.cancel([first])
        assert waiting.result(LIMIT_SECONDS).status is Status.CANCELED
        assert code == 0


def test_watch_yields_each_change_until_the_job_ends(driver: MemoryDriver, watcher: JobWatcher) -> None:
    job_id = enqueued(driver)

    async def watch() -> list[tuple[Status, int | None]]:
        seen = []
        claims: list[Claim] = []
        async for job in watcher.watch(job_id, LONG):
            seen.append((job.status, None if job.progress is None else job.progress.done))
            if job.status is Status.PENDING:
                claims += claimed(driver)
            elif job.progress is None:
                driver.save_progress([(claims[0].lease, Progress(1, 2))])
            elif not job.status.is_final:
                driver.settle([Settlement(claims[0].lease, Outcome.ack())])
        return seen

    assert run(watch()) == [
        (Status.PENDING, None),
        (Status.PROCESSING, None),
        (Status.PROCESSING, 1),
        (Status.SUCCEEDED, 1),
    ]


def test_watch_ignores_an_extended_lease(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher
) -> None:
    job_id = enqueued(driver)
    [claim] = claimed(driver)

    async def watch() -> list[Status]:
        seen = []
        async for job in watcher.watch(job_id, LONG):
            seen.append(job.status)
            if not job.status.is_final:
                driver.extend([claim.lease], lease=2 * LONG)
                polls = len(inspector.asked)
                ends = asyncio.to_thread(wait_until, lambda polls=polls: len(inspector.asked) > polls)  # type: ignore[misc]
                ends_later = asyncio.create_task(ends)
                ends_later.add_done_callback(lambda _: driver.settle([Settlement(claim.lease, Outcome.ack())]))
        return seen

    assert run(watch()) == [Status.PROCESSING, Status.SUCCEEDED]


def test_watch_ends_at_its_timeout_and_raises_if_the_store_is_unavailable(
    driver: MemoryDriver, inspector: CountingInspector, watcher: JobWatcher
) -> None:
    job_id = enqueued(driver)

    async def watch() -> list[Status]:
        return [job.status async for job in watcher.watch(job_id, ENOUGH)]

    assert run(watch()) == [Status.PENDING]
    inspector.error = StoreUnavailable("no route")
    with pytest.raises(StoreUnavailable, match="no route"):
        run(watch())


def test_waits_on_postgresql_end_with_the_job() -> None:
    with closing(PostgresDriver(emptied())) as driver, closing(JobWatcher(driver.inspector)) as watcher:
        jobs = [enqueued(driver) for _ in range(3)]

        async def wait_for_all() -> list[Job]:
            tasks = [asyncio.create_task(watcher.await_final(job_id, LONG)) for job_id in jobs]
            await asyncio.to_thread(done, driver, count=3)
            return await asyncio.gather(*tasks)

        assert [job.status for job in run(wait_for_all())] == 3 * [Status.SUCCEEDED]
