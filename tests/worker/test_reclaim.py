"""How often a worker scans for expired leases."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from taskharbor.core.ids import JobId, new_token
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import new_job
from taskharbor.worker.claimer import RECLAIM_INTERVAL_SECONDS
from tests.support.stages import StageRecorder, claimer, worker_config

if TYPE_CHECKING:
    import pytest

    from taskharbor.core.model import Claim

LEASE = timedelta(seconds=5)


class ReclaimRig:
    """A queue, a worker that dies with its jobs, and one that reclaims them."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self._driver = MemoryDriver(clock=self._clock)
        self.now = 1_000.0
        runtime: Any = SimpleNamespace(monotonic=lambda: self.now, token=new_token)
        slots: Any = SimpleNamespace(fill=lambda *_: None, acquire=lambda _queue, limit: limit)
        config = worker_config(LEASE, worker="w")
        self.stages = StageRecorder()
        self._claimer = claimer(runtime, self._driver, slots, self.stages, config, types=["greet"])

    def insert(self) -> JobId:
        job = new_job()
        self._driver.insert([job])
        return job.id

    def abandon(self, count: int) -> list[JobId]:
        """Insert jobs whose lease has expired."""
        jobs = [self.insert() for _ in range(count)]
        self._driver.reserve(
            "default", token=new_token(), worker="doomed", lease=LEASE, limit=count, overdue_after=LEASE
        )
        self._clock.advance(LEASE)
        return jobs

    def watch_calls(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
        """Return a list that gets, for each call of the store, whether it reclaims and how many jobs had started."""
        calls: list[tuple[bool, int]] = []
        reserve = self._driver.reserve

        def watched(queue: str, **options: Any) -> list[Claim]:
            calls.append((options["reclaim"], len(self.stages.started_jobs)))
            return reserve(queue, **options)

        monkeypatch.setattr(self._driver, "reserve", watched)
        return calls

    def claim(self, slots: int) -> list[JobId]:
        return [each.job.id for each in self._claimer.reserve("default", slots)]


def test_expired_leases_are_scanned_for_at_an_interval() -> None:
    rig = ReclaimRig()
    assert rig.claim(5) == []
    abandoned, due = rig.abandon(2), rig.insert()

    assert rig.claim(5) == [due]  # it does not wait for a scan
    rig.now += RECLAIM_INTERVAL_SECONDS
    assert rig.claim(5) == abandoned


def test_a_scan_that_filled_all_slots_is_repeated_immediately() -> None:
    rig = ReclaimRig()
    first, second, third = rig.abandon(3)

    assert [rig.claim(1), rig.claim(1), rig.claim(1)] == [[first], [second], [third]]


def test_expired_leases_are_scanned_for_immediately_if_no_job_is_due() -> None:
    rig = ReclaimRig()
    assert rig.claim(5) == []

    abandoned = rig.abandon(2)

    assert rig.claim(5) == abandoned


def test_jobs_after_a_claim_that_found_some_start_before_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ReclaimRig()
    first = rig.insert()
    rig.claim(5)
    abandoned, due = rig.abandon(2), rig.insert()
    rig.now += RECLAIM_INTERVAL_SECONDS
    calls = rig.watch_calls(monkeypatch)
    claimed = rig.claim(5)

    assert (claimed[0], {*claimed[1:]}, calls) == (due, {first, *abandoned}, [(False, 1), (True, 2)])


def test_an_idle_worker_scans_for_expired_leases_by_the_call_that_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ReclaimRig()
    rig.insert()
    rig.claim(5)
    rig.claim(5)
    rig.now += RECLAIM_INTERVAL_SECONDS
    calls = rig.watch_calls(monkeypatch)

    assert (rig.claim(5), calls) == ([], [(True, 1)])
