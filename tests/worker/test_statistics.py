"""What workers measure equals what the store's rows say, and a killed worker loses at most one heartbeat of it."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor import Client, DeadLetter, Harbor, JobRequest, Retry, Snooze, Worker
from taskharbor.core.errors import StoreUnavailable, UsageError
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import JobFilter, Settled
from taskharbor.core.states import Status
from taskharbor.core.statistics import BUCKETS, HOUR, GroupBy, Metric, SeriesQuery, bucket_of
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.runtime import ThreadRuntime
from taskharbor.testing.conformance.subject import LEASE, TEN_YEARS, Subject
from taskharbor.worker.execution import Execution
from taskharbor.worker.statistics import AttemptStatistics
from tests.conformance.test_drivers import memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.model import Job
    from taskharbor.core.statistics import SeriesPoint
    from taskharbor.drivers.base import Driver

JOBS: Final = 60
WAIT_SECONDS: Final = 60.0


def test_statistics_of_a_worker_equal_a_scan_of_jobs_and_attempts(driver: Driver) -> None:
    chance = random.Random(7)
    ends = {n: chance.choice(["succeed", "fail", "retry", "snooze", "time out"]) for n in range(JOBS)}
    tried: Counter[int] = Counter()

    def handle(job: Job) -> None:
        number = int(job.data)
        tried[number] += 1
        match ends[number]:
            case "fail":
                raise DeadLetter("hopeless")
            case "retry" if tried[number] == 1:
                raise Retry(after=0)
            case "snooze" if tried[number] == 1:
                raise Snooze(0)
            case "time out" if tried[number] == 1:
                raise TimeoutError

    worker = Worker(driver, queues=["a", "b"], concurrency=4, version="4f2c")
    for job_type in ("x", "y"):
        worker.register(job_type, handle)
    requests = [JobRequest(type="xy"[n % 2], queue="ab"[n % 3 == 0], payload=n) for n in range(JOBS)]
    Client(driver).enqueue_many(requests)
    worker.drain(WAIT_SECONDS)
    driver.maintenance.roll_up(keep=TEN_YEARS)

    jobs = driver.inspector.get([job.id for job in driver.inspector.find(JobFilter(), limit=2 * JOBS).jobs])
    attempts = driver.inspector.attempts(list(jobs))
    successes = [job for job in jobs.values() if job.status is Status.SUCCEEDED]
    outcomes = Counter[str](attempt.outcome.value for attempt in attempts) + Counter({"SUCCEEDED": len(successes)})
    types = Counter(jobs[attempt.job_id].type for attempt in attempts) + Counter(job.type for job in successes)
    once = {job.id: job for job in jobs.values() if job.status.is_final}

    assert _groups(driver, Metric.ATTEMPTS, GroupBy.STATUS) == outcomes
    assert _groups(driver, Metric.ATTEMPTS, GroupBy.TYPE) == types
    assert sum(_buckets(driver, Metric.RUN)) == sum(_buckets(driver, Metric.WAIT)) == outcomes.total()
    # A job's row has the times of its last attempt only, and those of earlier ones are not stored.
    last = Counter(bucket_of(_started(job) - job.scheduled_for) for job in once.values())
    assert all(_buckets(driver, Metric.WAIT)[bucket] >= count for bucket, count in last.items())
    assert [each.version for each in driver.inspector.versions(limit=10)] == ["4f2c"]


def test_wait_times_equal_a_scan_of_jobs_that_ran_once(driver: Driver) -> None:
    worker = Worker(driver, concurrency=2)
    worker.register("greet", lambda _job: None)
    ages = [0, 0.004, 0.1, 3, 90, 20_000]
    now = driver.inspector.now()
    requests = [JobRequest(type="greet", scheduled_for=now - timedelta(seconds=age)) for age in ages]
    Client(driver).enqueue_many(requests)
    worker.drain(WAIT_SECONDS)
    driver.maintenance.roll_up(keep=TEN_YEARS)

    page = driver.inspector.find(JobFilter(), limit=100)
    scanned = Counter(bucket_of(_started(job) - job.scheduled_for) for job in page.jobs)

    assert Counter({n: count for n, count in enumerate(_buckets(driver, Metric.WAIT)) if count}) == scanned


def test_buckets_are_those_of_the_durations() -> None:
    subject = memory()
    statistics = AttemptStatistics(ThreadRuntime(sync_threads=1))
    durations = [timedelta(microseconds=2**n + offset) for n in range(2, 45) for offset in (-1, 0, 1)]
    for duration in durations:
        _count(statistics, [_ran(subject, waited=duration, ran=duration)])

    taken = statistics.take()

    expected = Counter(f"{bucket_of(duration):02}" for duration in durations)
    assert Counter(_keys(taken, Metric.WAIT)) == expected
    assert Counter(_keys(taken, Metric.RUN)) == expected
    assert statistics.take() == []


def test_an_attempt_belongs_to_the_minute_of_its_end_by_the_stores_clock() -> None:
    subject = memory()
    statistics = AttemptStatistics(ThreadRuntime(sync_threads=1))
    start = subject.clock.now()  # a whole minute
    for seconds in (59.9, 60.0, 119.9):
        _count(statistics, [_ran(subject, ran=timedelta(seconds=seconds))])

    minutes = Counter({each.minute: each.count for each in statistics.take() if each.metric is Metric.ATTEMPTS})

    assert minutes == {start: 1, start + timedelta(minutes=1): 2}


def test_an_outcome_that_was_not_recorded_is_not_counted() -> None:
    subject = memory()
    statistics = AttemptStatistics(ThreadRuntime(sync_threads=1))
    execution = _ran(subject)
    statistics.count([(execution, Outcome.ack()), (execution, None)], [StoreUnavailable("away"), None])

    assert statistics.take() == []


def test_a_killed_worker_loses_what_it_counted_since_its_last_heartbeat() -> None:
    driver = MemoryDriver()
    worker = Worker(driver, janitor=False)
    worker.register("greet", lambda _job: None)
    _run_jobs(driver, worker, 3)
    worker._worker_heartbeat.tick()  # noqa: SLF001  the next one is 10 s away
    _run_jobs(driver, worker, 2)
    driver.maintenance.roll_up(keep=TEN_YEARS)

    killed = _groups(driver, Metric.ATTEMPTS, GroupBy.STATUS)
    worker._worker_heartbeat.remove()  # noqa: SLF001  as a worker that stops does
    driver.maintenance.roll_up(keep=TEN_YEARS)

    assert killed == {"SUCCEEDED": 3}
    assert _groups(driver, Metric.ATTEMPTS, GroupBy.STATUS) == {"SUCCEEDED": 5}


def test_statistics_whose_hand_over_failed_are_not_added_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = MemoryDriver()
    worker = Worker(driver, janitor=False)
    worker.register("greet", lambda _job: None)
    _run_jobs(driver, worker, 3)
    record = driver.maintenance.record_statistics

    def lose_reply(*arguments: Any, **named: Any) -> None:
        record(*arguments, **named)
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(driver.maintenance, "record_statistics", lose_reply)
        worker._worker_heartbeat.tick()  # noqa: SLF001  as above
    worker._worker_heartbeat.remove()  # noqa: SLF001  as above
    driver.maintenance.roll_up(keep=TEN_YEARS)

    assert _groups(driver, Metric.ATTEMPTS, GroupBy.STATUS) == {"SUCCEEDED": 3}


def test_the_version_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHARBOR_APP_VERSION", "2030.1")

    versions = [Harbor("memory://", version=given).worker().config.version for given in ("4f2c", None)]
    monkeypatch.delenv("TASKHARBOR_APP_VERSION")

    assert [*versions, Harbor("memory://").worker().config.version] == ["4f2c", "2030.1", None]


@pytest.mark.parametrize("version", ["", "x" * 101, "a\nb", "a\x00b"])
def test_a_version_that_cannot_be_shown_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match=r"version is .* 1 to 100 printable characters"):
        Worker(MemoryDriver(), version=version)


def _run_jobs(driver: Driver, worker: Worker, count: int) -> None:
    """Run *count* jobs by the stages of *worker*, without its threads."""
    stages = worker._pipeline  # noqa: SLF001  its loops are not started
    Client(driver).enqueue_many([JobRequest(type="greet")] * count)
    for claim in driver.reserve(
        "default", token=new_token(), worker=worker.id, lease=LEASE, limit=count, overdue_after=LEASE
    ):
        execution = Execution(claim, ends_at=stages.leases._runtime.monotonic() + 30, times_out_at=None)  # noqa: SLF001
        execution.begin(stages.leases._runtime.monotonic())  # noqa: SLF001
        stages.recorder.put(execution, Outcome.ack())
    stages.recorder.tick()


def _ran(subject: Subject, *, waited: timedelta = timedelta(0), ran: timedelta = timedelta(0)) -> Execution:
    subject.insert(scheduled_for=subject.clock.now() - waited)
    execution = Execution(subject.take(), ends_at=0, times_out_at=None)
    execution.begin(1_000.0)
    execution.ended_at = 1_000.0 + ran.total_seconds()
    return execution


def _count(statistics: AttemptStatistics, executions: Sequence[Execution]) -> None:
    ended = [(each, Outcome.ack()) for each in executions]
    statistics.count(ended, [Settled(each.claim.job.id, Status.SUCCEEDED) for each in executions])


def _keys(tallies: Sequence[Any], metric: Metric) -> list[str]:
    return [each.key for each in tallies if each.metric is metric for _ in range(each.count)]


def _started(job: Any) -> Any:
    assert job.processing_started_at is not None
    return job.processing_started_at


def _series(driver: Driver, metric: Metric, by: GroupBy) -> list[SeriesPoint]:
    now = driver.inspector.now()
    return driver.inspector.series(SeriesQuery(metric=metric, by=by, step=HOUR, since=now - HOUR, until=now + HOUR))


def _groups(driver: Driver, metric: Metric, by: GroupBy) -> Counter[str]:
    counts: Counter[str] = Counter()
    for point in _series(driver, metric, by):
        counts[point.group] += int(point.value)
    return counts


def _buckets(driver: Driver, metric: Metric) -> list[int]:
    points = _series(driver, metric, GroupBy.NONE)
    return [sum(point.buckets[n] for point in points) for n in range(BUCKETS)]
