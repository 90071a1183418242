"""Queues whose head is full of jobs without a handler here: what is claimed, and when the whole queue is scanned."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.ids import new_token
from taskharbor.drivers import backlogs
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER, new_job
from tests.support.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.base import Driver

MINUTE: Final = timedelta(minutes=1)
SECOND: Final = timedelta(seconds=1)


class BacklogRig:
    """A store in which a few unhandled jobs count as a backlog, and every scan as slow."""

    def __init__(self, driver: Driver, clock: ManualClock, seconds: list[float]) -> None:
        self.driver, self.clock, self.seconds = driver, clock, seconds

    def insert(self, count: int, job_type: str, *, age: timedelta = timedelta(0), priority: int = 0) -> list[JobId]:
        due = self.clock.now() - age
        jobs = [new_job(type=job_type, scheduled_for=due, priority=priority) for _ in range(count)]
        self.driver.insert(jobs)
        return sorted(job.id for job in jobs)

    def reserve(self, limit: int = 2, **options: Any) -> list[JobId]:
        given = {"unhandled_after": 5 * MINUTE, **options}
        claims = self.driver.reserve(
            "default", token=new_token(), worker="w", lease=LEASE, limit=limit, overdue_after=OVERDUE_AFTER,
            types=["known"], **given,
        )  # fmt: skip
        return [claim.job.id for claim in claims]

    @property
    def is_skipped(self) -> bool:
        """Whether the scans of the queue start behind the backlog."""
        known: Any = self.driver
        return bool(known._scans._backlogs._backlogs)  # noqa: SLF001  nothing else shows it, except time


@pytest.fixture(params=["sqlite", "postgres"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BacklogRig]:
    clock, seconds = ManualClock(), [1_000.0]
    monkeypatch.setattr(backlogs, "SLOW_SCAN_SECONDS", -1.0)
    monkeypatch.setattr(backlogs, "MIN_UNHANDLED", 5)
    monkeypatch.setattr(backlogs, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    opened: Driver = (
        PostgresDriver(emptied(), clock=clock)
        if request.param == "postgres"
        else SqliteDriver(tmp_path / "jobs.db", clock=clock)
    )
    with closing(opened):
        yield BacklogRig(opened, clock, seconds)


def test_jobs_behind_a_backlog_are_all_claimed_once_and_in_order(rig: BacklogRig) -> None:
    rig.insert(6, "new", age=2 * MINUTE)
    among = rig.insert(3, "known", age=MINUTE)
    rig.insert(6, "new", age=MINUTE / 2)
    behind = rig.insert(4, "known")

    claimed = [rig.reserve() for _ in range(5)]

    assert [job_id for batch in claimed for job_id in batch] == [*among, *behind]
    assert rig.is_skipped


def test_new_jobs_and_more_urgent_ones_are_found_behind_and_before_a_backlog_at_once(rig: BacklogRig) -> None:
    rig.insert(6, "new", age=MINUTE)
    assert (rig.reserve(), rig.is_skipped) == ([], True)
    rig.clock.advance(SECOND)

    later = rig.insert(1, "known", priority=7)
    same = rig.insert(1, "known")
    urgent = rig.insert(1, "known", age=MINUTE, priority=-7)

    assert [rig.reserve(limit=1) for _ in range(4)] == [urgent, same, later, []]


def test_an_older_job_is_found_by_the_next_scan_of_the_whole_queue(rig: BacklogRig) -> None:
    rig.insert(6, "new", age=MINUTE)
    rig.reserve()
    older = rig.insert(1, "known", age=2 * MINUTE)

    at_once = rig.reserve()
    rig.seconds[0] += backlogs.MAX_RESCAN_SECONDS

    assert (at_once, rig.reserve()) == ([], older)


def test_unhandled_jobs_are_claimed_when_they_have_been_left_for_long_enough(rig: BacklogRig) -> None:
    unhandled = rig.insert(20, "new", age=5 * MINUTE - SECOND)
    assert (rig.reserve(), rig.is_skipped) == ([], True)

    rig.clock.advance(SECOND)
    rig.seconds[0] += backlogs.MAX_RESCAN_SECONDS

    assert [rig.reserve(limit=3), rig.reserve(limit=3)] == [unhandled[:3], unhandled[3:6]]
    assert not rig.is_skipped


def test_a_few_unhandled_jobs_are_not_skipped(rig: BacklogRig) -> None:
    rig.insert(4, "new", age=MINUTE)
    rig.reserve()

    assert (rig.is_skipped, rig.insert(1, "known", age=2 * MINUTE)) == (False, rig.reserve())


def test_overdue_jobs_are_found_behind_a_backlog(rig: BacklogRig) -> None:
    rig.insert(6, "new", age=OVERDUE_AFTER + MINUTE)
    assert (rig.reserve(overdue_only=True, unhandled_after=None), rig.is_skipped) == ([], True)
    rig.clock.advance(SECOND)

    overdue = rig.insert(1, "known", age=OVERDUE_AFTER)
    rig.insert(1, "known", age=OVERDUE_AFTER - SECOND)

    assert rig.reserve(overdue_only=True, unhandled_after=None) == overdue


def test_the_pause_between_scans_of_the_whole_queue_grows_with_their_cost() -> None:
    assert [backlogs.rescan_pause(seconds) for seconds in (0.001, 0.1, 9.0)] == [1.0, 5.0, 10.0]


def test_a_head_is_examined_only_if_the_claims_do_not_explain_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    known, now = backlogs.UnhandledBacklogs(), [10.0]
    monkeypatch.setattr(backlogs, "time", SimpleNamespace(monotonic=lambda: now[0]))

    assert [known.must_examine(claims, 0.02, claims) for claims in (0, 16, 500)] == [True, True, False]


def test_a_head_is_examined_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    known, now = backlogs.UnhandledBacklogs(), [10.0]
    monkeypatch.setattr(backlogs, "time", SimpleNamespace(monotonic=lambda: now[0]))

    assert [known.must_examine(key, 0.02, 0) for key in ("mail", "mail", "images")] == [True, False, True]
    now[0] += 1.0
    assert known.must_examine("mail", 0.02, 0)
