"""A job that is canceled without a worker is reported once, by the process that canceled it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

import pytest
from prometheus_client import CollectorRegistry

from taskharbor import Client, Harbor, MemoryDriver
from taskharbor.core.hooks import AttemptLost, HookEvent, JobCanceled, JobsEnqueued, LeasesExpired
from taskharbor.core.ids import JobId, new_token
from taskharbor.core.operations import NewOperation, OperationId, OperationKind
from taskharbor.core.results import JobFilter
from taskharbor.core.states import FINAL, Status
from taskharbor.janitor import Janitor
from taskharbor.observability.prometheus import PrometheusHook
from taskharbor.schedules import Scheduler, ScheduleSpec
from taskharbor.testing.clock import ManualClock
from tests.support.api_rig import ApiRig
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS, SHORT, enqueue, running_worker, stored

if TYPE_CHECKING:
    from taskharbor.core.model import Job
    from taskharbor.runtime import Runtime

LEASE: Final = timedelta(seconds=30)
START: Final = datetime(2030, 1, 1, 0, 30, tzinfo=UTC)


class Observer:
    """A hook that keeps the events, and counts them as Prometheus does."""

    def __init__(self) -> None:
        self.events: list[HookEvent] = []
        self.metrics = PrometheusHook(CollectorRegistry())

    def __call__(self, event: HookEvent) -> None:
        self.events.append(event)
        self.metrics(event)

    @property
    def canceled(self) -> list[JobCanceled]:
        return [event for event in self.events if isinstance(event, JobCanceled)]

    @property
    def count(self) -> float | None:
        labels = {"queue": "default", "status": "CANCELED"}
        return self.metrics.registry.get_sample_value("taskharbor_jobs_finished_total", labels)


@pytest.fixture
def observer() -> Observer:
    return Observer()


def is_reported_once(observer: Observer, *job_ids: JobId, type: str = "run") -> bool:
    wanted = [JobCanceled(job_id=job_id, type=type, queue="default") for job_id in job_ids]
    return observer.canceled == wanted and observer.count == len(job_ids)


def test_a_canceled_handle_is_reported_by_its_client(observer: Observer) -> None:
    harbor = Harbor("memory://", hooks=[observer])

    @harbor.task
    def run() -> None: ...

    handle = run.enqueue()
    assert [handle.cancel(), handle.cancel()] == [True, False]

    assert is_reported_once(observer, handle.id)


def test_a_cancel_over_http_is_reported_by_the_api(observer: Observer) -> None:
    site = ApiRig()
    site.backend.client = Client(site.driver, hooks=[observer])
    job_id = site.create(type="run")

    assert site.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    assert site.post(f"/v1/jobs/{job_id}/cancel").status_code == 409

    assert [str(event.job_id) for event in observer.canceled] == [job_id]
    assert observer.count == 1
    site.close()


def test_a_schedule_that_is_run_over_http_is_reported_by_the_api(observer: Observer) -> None:
    site = ApiRig()
    site.backend.client = Client(site.driver, hooks=[observer])
    Scheduler(site.driver).put([ScheduleSpec(name="hourly", cron="0 * * * *", type="run")])

    assert site.post("/v1/schedules/hourly/run").status_code == 201

    assert [[job.type for job in event.jobs] for event in observer.events if isinstance(event, JobsEnqueued)] == [
        ["run"]
    ]
    site.close()


def test_a_job_that_its_schedule_cancels_is_reported_by_the_scheduler(observer: Observer) -> None:
    clock = ManualClock(START)
    driver = MemoryDriver(clock=clock)
    scheduler = Scheduler(driver, hooks=[observer])
    scheduler.put([ScheduleSpec(name="hourly", cron="0 * * * *", type="run", overlap="cancel")])
    clock.advance(timedelta(minutes=31))
    scheduler.tick()
    [first] = [job.id for event in observer.events if isinstance(event, JobsEnqueued) for job in event.jobs]

    clock.advance(timedelta(hours=1))
    scheduler.tick()

    assert is_reported_once(observer, first)


class Clockwork:
    """The clocks of a process and of its store, which a test advances together."""

    def __init__(self, observer: Observer) -> None:
        self.seconds = 0.0
        self.store = ManualClock(START)
        self.driver = MemoryDriver(clock=self.store)
        self.janitor = Janitor(cast("Runtime", self), self.driver, lease=LEASE, hooks=[observer])

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            self.seconds += 1
            self.store.advance(timedelta(seconds=1))
            self.janitor.tick()


def test_jobs_canceled_by_an_operation_are_reported_by_the_janitor(observer: Observer) -> None:
    clockwork = Clockwork(observer)
    job_ids = sorted((enqueue(clockwork.driver, "run") for _ in range(3)), reverse=True)
    clockwork.driver.cancel(job_ids[:1])
    operation = NewOperation(
        id=OperationId(new_token()), kind=OperationKind.CANCEL, by="ops", filter=JobFilter(queue="default")
    )
    clockwork.driver.operations.add([operation], starts_in=timedelta(0))

    clockwork.advance(5)

    assert is_reported_once(observer, *job_ids[1:])


def test_a_job_whose_worker_died_after_a_cancel_is_reported_by_the_janitor(observer: Observer) -> None:
    clockwork = Clockwork(observer)
    job_id = enqueue(clockwork.driver, "run")
    clockwork.driver.reserve("default", token=new_token(), worker="gone", lease=LEASE, limit=1, overdue_after=LEASE)
    clockwork.driver.cancel([job_id])
    assert observer.canceled == []

    clockwork.advance(60)

    assert [event.job_ids for event in observer.events if isinstance(event, LeasesExpired)] == [[job_id]]
    assert is_reported_once(observer, job_id)


def test_a_running_job_is_reported_by_its_worker_only(observer: Observer) -> None:
    harbor = Harbor(MemoryDriver(), hooks=[observer])
    driver = harbor.driver

    async def run(_job: Job) -> None:
        await asyncio.sleep(LIMIT_SECONDS)

    with running_worker(driver, {"run": run}, lease=SHORT, hooks=[observer]):
        job_id = enqueue(driver, "run")
        wait_until(lambda: stored(driver, job_id).status is Status.PROCESSING)
        harbor.handle(job_id).cancel()
        wait_until(lambda: stored(driver, job_id).status in FINAL and observer.canceled != [])

    [event] = observer.canceled
    assert (event.job_id, event.job is not None, observer.count) == (job_id, True, 1)
    assert not [each for each in observer.events if isinstance(each, AttemptLost)]
