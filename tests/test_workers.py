"""The states of workers, and what was lost with them, on every store."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.core.model import WorkerRecord
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import scan_limit
from taskharbor.diagnosis import WORKER_GONE_AFTER
from taskharbor.testing.conformance.subject import LEASE, new_job
from taskharbor.workers import describe_worker, find_worker, held_by, list_workers, lost_with
from tests.conformance.test_drivers import memory, postgres, sqlite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.testing.conformance import Subject

SECOND: Final = timedelta(seconds=1)
WEEK: Final = timedelta(days=7)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    made = {"memory": memory, "sqlite": lambda: sqlite(tmp_path), "postgres": postgres}[request.param]()
    yield made
    made.driver.close()


def start(subject: Subject, worker_id: str) -> None:
    worker = WorkerRecord(
        id=worker_id,
        host="box",
        pid=7,
        queues=("default",),
        types=("greet",),
        concurrency=8,
        busy_slots=3,
        lost_slots=1,
        started_at=subject.clock.now(),
    )
    subject.driver.maintenance.record_worker(worker)


def states(subject: Subject, *, include_past: bool = True) -> dict[str, str]:
    inspector = subject.driver.inspector
    found = list_workers(inspector, include_past=include_past)
    return {each.id: describe_worker(each, inspector.now())["state"] for each in found}


def test_a_worker_is_live_then_silent_then_gone(subject: Subject) -> None:
    start(subject, "w")
    seen = []
    for passed in (timedelta(seconds=29), SECOND, timedelta(minutes=4, seconds=29), SECOND):
        subject.advance(passed)
        subject.driver.maintenance.prune_workers(unseen_for=WORKER_GONE_AFTER, keep=WEEK)
        seen.append((states(subject), states(subject, include_past=False)))

    assert [of_all["w"] for of_all, _ in seen] == ["live", "silent", "silent", "gone"]
    assert [list(listed) for _, listed in seen] == [["w"], ["w"], ["w"], []]


def test_a_stopped_worker_leaves_the_list_at_once(subject: Subject) -> None:
    for worker_id in ("w", "v"):
        start(subject, worker_id)
    subject.driver.maintenance.remove_worker("w")

    assert (states(subject), states(subject, include_past=False)) == ({"v": "live", "w": "gone"}, {"v": "live"})
    stopped = find_worker(subject.driver.inspector, "w")
    assert stopped is not None
    view = describe_worker(stopped, subject.clock.now())
    assert (view["is_alive"], view["stopped_at"] is None, view["free_slots"]) == (False, False, 4)
    assert find_worker(subject.driver.inspector, "nothing") is None


def test_a_killed_workers_jobs_are_shown_with_who_ran_them_next(subject: Subject) -> None:
    ids = [subject.insert(), subject.insert(), subject.insert()]
    subject.reserve(worker="killed", limit=3)
    subject.advance(LEASE)
    subject.driver.maintenance.expire(limit=3)
    subject.advance(2 * SECOND)
    done, running = subject.reserve(worker="heir", limit=2)
    subject.settle(done, Outcome.ack())

    lost = {each.job.id: each.view() for each in lost_with(subject.driver.inspector, "killed")}

    assert set(lost) == set(ids)
    following = {
        job_id: view["next"] and (view["next"]["worker"], view["next"]["outcome"]) for job_id, view in lost.items()
    }
    left = (set(ids) - {done.job.id, running.job.id}).pop()
    assert following == {done.job.id: ("heir", "SUCCEEDED"), running.job.id: ("heir", "RUNNING"), left: None}
    assert lost[done.job.id]["next"]["wait_seconds"] == 2.0
    assert [lost[each]["status"] for each in (done.job.id, running.job.id)] == ["SUCCEEDED", "PROCESSING"]
    assert lost_with(subject.driver.inspector, "heir") == []


def test_a_job_lost_twice_by_one_worker_is_listed_twice(subject: Subject) -> None:
    subject.insert()
    for _ in range(2):
        subject.take(worker="killed")
        subject.advance(LEASE)
        subject.driver.maintenance.expire(limit=1)
        subject.advance(SECOND)

    second, first = lost_with(subject.driver.inspector, "killed")

    assert first.following is not None
    assert (first.following.at, first.following.outcome) == (second.attempt.started_at, "LOST")
    assert second.following is None


def test_the_jobs_that_a_worker_holds_are_found_among_many(subject: Subject) -> None:
    [held] = [subject.insert()]
    subject.reserve(worker="w")
    subject.driver.insert([new_job() for _ in range(scan_limit(1) + 1)])
    subject.reserve(worker="v", limit=scan_limit(1) + 1)

    page = held_by(subject.driver.inspector, "w")

    assert ([job.id for job in page.jobs], page.after) == ([held], None)
    assert len(held_by(subject.driver.inspector, "v", limit=3).jobs) == 3
