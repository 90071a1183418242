"""Calls of a worker that lost its lease: the store refuses them, and the job's timeline shows it."""

from __future__ import annotations

import signal
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.ids import new_token
from taskharbor.core.states import Event, Status
from taskharbor.timeline import Kind, read_timeline
from taskharbor.workers import describe_worker, find_worker, held_by, lost_with
from tests.support.postgres import database
from tests.support.waiting import wait_until
from tests.support.worker_fleet import Fleet
from tests.support.worker_rig import LIMIT_SECONDS, LONG, Outage, enqueue, meddled, running_worker, stored, worker_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver
    from taskharbor.timeline import TimelineEntry

ALONE: Final[dict[str, Any]] = {"concurrency": 1, "prefetch": 0, "janitor": False}
"""A worker that cannot claim its own job again while it runs it."""
ENDLESS_SECONDS: Final = 300.0  # of handlers whose process is killed


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with database() as url, Fleet.at(url, tmp_path) as fleet:
        yield fleet


def start_known(fleet: Fleet) -> tuple[Any, str]:
    """Start a worker process; return it and the id of its worker."""
    known = {each.id for each in fleet.driver.inspector.workers()}
    process = fleet.start()
    found: list[str] = []

    def is_recorded() -> bool:
        found[:] = [each.id for each in fleet.driver.inspector.workers() if each.id not in known]
        return bool(found)

    wait_until(is_recorded, limit=60.0)
    return process, found[0]


def attempts_of(driver: Driver, job_id: JobId) -> list[TimelineEntry]:
    return [each for each in read_timeline(driver.inspector, job_id) if each.kind is Kind.ATTEMPT]


def wait_for_second_attempts(fleet: Fleet, jobs: list[JobId], heir: str) -> None:
    def is_running(job_id: JobId) -> bool:
        job = fleet.driver.inspector.get([job_id])[job_id]
        return job.worker_id == heir and job.status is Status.PROCESSING

    wait_until(lambda: all(map(is_running, jobs)), limit=60.0)


def test_a_killed_workers_page_and_its_jobs_timelines_show_loss_and_recovery(fleet: Fleet) -> None:
    killed, victim = start_known(fleet)
    jobs = fleet.enqueue(3, seconds=ENDLESS_SECONDS)
    fleet.wait_for_starts(jobs)
    held = {job.id for job in held_by(fleet.driver.inspector, victim).jobs}
    _, heir = start_known(fleet)

    killed.kill()
    wait_for_second_attempts(fleet, jobs, heir)

    lost = lost_with(fleet.driver.inspector, victim)
    assert held == {each.job.id for each in lost} == set(jobs)
    assert {each.following and (each.following.worker, each.following.outcome) for each in lost} == {(heir, "RUNNING")}
    assert held_by(fleet.driver.inspector, victim).jobs == ()
    record = find_worker(fleet.driver.inspector, victim)
    assert record is not None
    assert describe_worker(record, fleet.driver.inspector.now())["stopped_at"] is None
    for job_id in jobs:
        first, second = attempts_of(fleet.driver, job_id)
        assert (first.worker, first.outcome, first.ended_at is not None) == (victim, "LOST", True)
        assert (second.worker, second.outcome) == (heir, "RUNNING")
        assert second.wait is not None
        assert timedelta(0) <= second.wait < timedelta(minutes=1)


def test_a_worker_suspended_past_its_lease_is_refused_and_the_timeline_shows_it(fleet: Fleet) -> None:
    suspended, victim = start_known(fleet)
    [job_id] = fleet.enqueue(1, seconds=ENDLESS_SECONDS)
    fleet.wait_for_starts([job_id])
    suspended.send_signal(signal.SIGSTOP)
    _, heir = start_known(fleet)
    wait_for_second_attempts(fleet, [job_id], heir)

    suspended.send_signal(signal.SIGCONT)
    wait_until(lambda: bool(fleet.driver.inspector.refusals([job_id])), limit=60.0)

    [refused] = [each for each in read_timeline(fleet.driver.inspector, job_id) if each.kind is Kind.REFUSED]
    first, second = attempts_of(fleet.driver, job_id)
    assert (refused.worker, refused.attempt, refused.action) == (victim, 1, "extend")
    assert first.ended_at is not None
    assert refused.at >= first.ended_at
    assert (first.outcome, second.worker) == ("LOST", heir)


class Stolen:
    """A handler whose lease is lost while it runs: the test takes the job over."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def __call__(self, _job: Job) -> None:
        self.began.set()
        assert self.may_end.wait(LIMIT_SECONDS)


def steal(driver: Driver, job_id: JobId, handler: Stolen) -> None:
    """End the lease of the running job, and lease it again."""
    assert handler.began.wait(LIMIT_SECONDS)
    driver.maintenance.report_clock_jump(expected=driver.inspector.now() + timedelta(hours=1), lease=timedelta(0))
    wait_until(lambda: bool(driver.maintenance.expire(limit=1)))
    driver.reserve(
        "default", token=new_token(), worker="thief", lease=LONG, limit=1, overdue_after=timedelta(0), reclaim=False
    )
    assert stored(driver, job_id).worker_id == "thief"


@pytest.mark.parametrize("driver", ["memory", "postgres"], indirect=True)
def test_a_refused_settlement_is_recorded_with_its_event(driver: Driver) -> None:
    handler = Stolen()
    with running_worker(driver, {"run": handler}, name="late", **ALONE):
        job_id = enqueue(driver, "run")
        steal(driver, job_id, handler)
        handler.may_end.set()
        wait_until(lambda: bool(driver.inspector.refusals([job_id])))

    [refusal] = driver.inspector.refusals([job_id])
    [refused] = [each for each in read_timeline(driver.inspector, job_id) if each.kind is Kind.REFUSED]
    assert refusal.event is Event.ACK
    assert (refused.worker, refused.attempt, refused.action) == ("late", 1, "ack")


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
@pytest.mark.parametrize("ends", ["the outage", "the worker"])
def test_a_refusal_is_recorded_after_an_outage_or_when_the_worker_stops(driver: Driver, ends: str) -> None:
    handler, outage = Stolen(), Outage("record_refusals")
    outage.begin()
    worker = worker_for(meddled(driver, outage), {"run": handler}, name="late", **ALONE)
    worker.start()
    job_id = enqueue(driver, "run")
    steal(driver, job_id, handler)
    handler.may_end.set()
    wait_until(lambda: worker.running_jobs == 0)
    during = driver.inspector.refusals([job_id])

    outage.end()
    if ends == "the outage":
        worker._loops.wake("worker-heartbeat")  # noqa: SLF001  otherwise its tick comes after ten seconds
        wait_until(lambda: bool(driver.inspector.refusals([job_id])))
    worker.stop(LONG)

    assert (during, len(driver.inspector.refusals([job_id]))) == ([], 1)


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
def test_a_completed_or_recorded_attempt_is_not_refused(driver: Driver) -> None:
    with running_worker(driver, {"run": lambda _job: None}):
        job_id = enqueue(driver, "run")
        wait_until(lambda: stored(driver, job_id).status is Status.SUCCEEDED)

    assert driver.inspector.refusals([job_id]) == []


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
def test_a_heartbeat_counts_busy_slots_and_names_the_library(driver: Driver) -> None:
    handler = Stolen()
    with running_worker(driver, {"run": handler}, concurrency=3) as worker:
        enqueue(driver, "run"), enqueue(driver, "run")
        wait_until(lambda: worker.running_jobs == 2)
        worker._loops.wake("worker-heartbeat")  # noqa: SLF001  as above
        wait_until(lambda: [each.busy_slots for each in driver.inspector.workers()] == [2])
        [record] = driver.inspector.workers()
        handler.may_end.set()

    assert record.library is not None
    assert describe_worker(record, driver.inspector.now())["free_slots"] == 1
