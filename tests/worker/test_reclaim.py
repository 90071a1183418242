"""How often a worker looks for leases that have ended."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from taskharbor.core.ids import JobId, new_token
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import new_job
from taskharbor.worker.claimer import RECLAIM_INTERVAL_SECONDS
from tests.support.stages import StageRecorder, claimer, worker_config

LEASE = timedelta(seconds=5)


class Scene:
    """A queue, a worker that dies with all it takes, and one that takes over."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self._driver = MemoryDriver(clock=self._clock)
        self.now = 1_000.0
        runtime: Any = SimpleNamespace(monotonic=lambda: self.now, token=new_token)
        executions: Any = SimpleNamespace(
            fill=lambda *_: None, acquire=lambda _queue, most: most, mark_lost=lambda _ids: None
        )
        config = worker_config(LEASE, worker="heir")
        self._claimer = claimer(runtime, self._driver, executions, StageRecorder(), config, types=["greet"])

    def insert(self) -> JobId:
        job = new_job()
        self._driver.insert([job])
        return job.id

    def abandon(self, count: int) -> list[JobId]:
        """Leave jobs behind whose lease is over."""
        jobs = [self.insert() for _ in range(count)]
        self._driver.reserve(
            "default", token=new_token(), worker="doomed", lease=LEASE, limit=count, overdue_after=LEASE
        )
        self._clock.advance(LEASE)
        return jobs

    def take(self, room: int) -> list[JobId]:
        return [claim.job.id for claim in self._claimer.reserve("default", room)]


def test_ended_leases_are_looked_for_now_and_then() -> None:
    scene = Scene()
    assert scene.take(5) == []
    abandoned, due = scene.abandon(2), scene.insert()

    assert scene.take(5) == [due]  # it does not wait for a look
    scene.now += RECLAIM_INTERVAL_SECONDS
    assert scene.take(5) == abandoned


def test_where_one_look_was_not_enough_the_next_follows_at_once() -> None:
    scene = Scene()
    first, second, third = scene.abandon(3)

    assert [scene.take(1), scene.take(1), scene.take(1)] == [[first], [second], [third]]


def test_where_nothing_is_due_a_look_waits_for_nothing() -> None:
    scene = Scene()
    assert scene.take(5) == []

    abandoned = scene.abandon(2)

    assert scene.take(5) == abandoned
