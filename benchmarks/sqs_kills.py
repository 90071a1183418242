"""Workers and enqueuers killed in pairs while SQS loses and duplicates messages, with checks of the results.

All processes are real: PostgreSQL, an SQS endpoint, three workers and two enqueuers. One worker and one
enqueuer are killed every two seconds. A job that does not become final, that has two holders at once, whose
dead-letter event is wrong, or whose message remains for more than two visibility timeouts raises, so there
are no figures.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from benchmarks import _sqs
from taskharbor.core.states import FINAL, Status
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE
from taskharbor.outbox import OUTBOX_LOCK
from tests.delivery.test_endpoint import control, process
from tests.support.waiting import wait_until
from tests.support.worker_fleet import LIMIT_SECONDS, Fleet
from tests.worker.test_crashes import served

if TYPE_CHECKING:
    import subprocess

    from taskharbor.core.ids import JobId
    from taskharbor.delivery.sqs import SqsTransport

JOBS: Final = 2_000
ENQUEUE_BATCH: Final = 20  # one job of each batch always fails
MAX_OPEN_JOBS: Final = 80  # jobs that are not final
POLL_SECONDS: Final = 0.1
JOB_SECONDS: Final = 0.15
FAULTS: Final = {"lose": 0.05, "duplicate": 0.05}
WORKERS: Final = 3
ENQUEUERS: Final = 2
KILL_SECONDS: Final = 2.0  # between two kills
VISIBILITY: Final = timedelta(seconds=2)  # of the workers of `tests.support.worker_process`
RECEIVE_SECONDS: Final = 1.0  # the long poll of those workers
TIMEOUT_SECONDS: Final = 600.0  # for all jobs


def figures(jobs: int = JOBS) -> dict[str, object]:
    with (
        _sqs.credentials(),
        process("--faults", json.dumps(FAULTS), "--seed", "1") as (_, url),
        _sqs.transport_to(url, visibility=VISIBILITY) as transport,
        served() as (_, fleet),
    ):
        crew = Crew(fleet, url)
        took = _kill_until_done(Load(fleet, jobs), crew)
        cleared = wait_until(lambda: _sqs.depth(url) == 0, limit=LIMIT_SECONDS)
        assert cleared <= 2 * VISIBILITY.total_seconds() + RECEIVE_SECONDS, f"messages remained for {cleared:.1f} s"
        wait_until(lambda: not _unpublished(fleet), limit=LIMIT_SECONDS + OUTBOX_LOCK.total_seconds())
        crew.end()
        happened = control(url, {})["happened"]
        return {
            **fleet.verdict(),
            **_deaths(fleet, transport, most_lost=happened["lose"]),
            "workers killed": crew.rounds,
            "enqueuers killed": crew.rounds,
            "messages lost": happened["lose"],
            "messages doubled": happened["duplicate"],
            "handlers that continued after their lease was lost": _overlaps(fleet),
            "seconds until all jobs were final": round(took, 1),
            "seconds until no message was left": round(cleared, 1),
        }


class Crew:
    """Workers and enqueuers. Kills and replaces the oldest of each."""

    def __init__(self, fleet: Fleet, url: str) -> None:
        self._fleet, self._url = fleet, url
        self._workers = [self._start(sends=False) for _ in range(WORKERS)]
        self._enqueuers = [self._start(sends=True) for _ in range(ENQUEUERS)]
        self.rounds = 0

    def kill_one_of_each(self) -> None:
        for crew, sends in ((self._workers, False), (self._enqueuers, True)):
            victim = crew.pop(0)
            assert victim.poll() is None, f"a process ended by itself:\n{self._fleet.said()}"
            victim.kill()
            victim.wait(LIMIT_SECONDS)
            crew.append(self._start(sends=sends))
        self.rounds += 1

    def end(self) -> None:
        for each in self._workers + self._enqueuers:
            self._fleet.end(each)

    def _start(self, *, sends: bool) -> subprocess.Popen[bytes]:
        return self._fleet.start(sqs=self._url, sends=sends)


class Load:
    """Jobs for the fleet, in limited numbers: otherwise all would be sent repeatedly before they are claimed."""

    def __init__(self, fleet: Fleet, jobs: int) -> None:
        self._fleet, self._jobs = fleet, jobs
        self._open: list[JobId] = []

    def is_over(self) -> bool:
        """Enqueue more jobs if few are open, and return whether all jobs are final."""
        found = self._fleet.driver.inspector.get(self._open)
        self._open = [job.id for job in found.values() if job.status not in FINAL]
        if len(self._open) < MAX_OPEN_JOBS and len(self._fleet.jobs) < self._jobs:
            self._open += self._fleet.enqueue(ENQUEUE_BATCH - 1, seconds=JOB_SECONDS)
            # This job dies: it asks for a wait longer than a thread allows, so every attempt fails.
            self._open += self._fleet.enqueue(1, job_type="plain", seconds=1e300, max_attempts=2)
        return not self._open


def _kill_until_done(load: Load, crew: Crew) -> float:
    start = time.monotonic()

    def is_done() -> bool:
        if time.monotonic() > start + (crew.rounds + 1) * KILL_SECONDS:
            crew.kill_one_of_each()
        threading.Event().wait(POLL_SECONDS)
        return load.is_over() and crew.rounds > 0

    return wait_until(is_done, limit=TIMEOUT_SECONDS)


def _dead(fleet: Fleet) -> list[JobId]:
    return [job.id for job in fleet.driver.inspector.get(fleet.jobs).values() if job.status is Status.DEAD]


def _unpublished(fleet: Fleet) -> int:
    return sum(not row.is_done for row in fleet.driver.inspector.outbox(_dead(fleet)))


def _deaths(fleet: Fleet, transport: SqsTransport, *, most_lost: int) -> dict[str, Any]:
    """Check that each dead job has one outbox row and that its event was received, unless the endpoint lost it."""
    dead, rows = _dead(fleet), fleet.driver.inspector.outbox(_dead(fleet))
    assert sorted(row.event.job_id for row in rows) == sorted(dead), "a dead job has no outbox row, or several"
    assert all(row.published_at for row in rows), "an event was not published"
    received = _events(transport)
    known = {row.event.event_id: str(row.event.job_id) for row in rows}
    assert {event_id: known.get(event_id) for event_id, _ in received} == dict(received), "an event names another job"
    times = Counter(event_id for event_id, _ in received)
    missing = len(known.keys() - times.keys())
    assert missing <= most_lost, f"{missing} events are missing, but only {most_lost} messages were lost"
    return {
        "outbox rows": len(rows),
        "events received": len(times),
        "events received more than once": {event_id: n for event_id, n in times.items() if n > 1},
        "events that the endpoint lost": missing,
    }


def _events(transport: SqsTransport) -> list[tuple[str, str]]:
    received: list[tuple[str, str]] = []
    while found := transport.receive(DEAD_EVENTS_QUEUE, most=10, wait=timedelta(0), visibility=timedelta(minutes=10)):
        events = [json.loads(each.body) for each in found]
        received += [(event["event_id"], event["job_id"]) for event in events]
    return received


def _overlaps(fleet: Fleet) -> int:
    """Return how many handlers ended after another attempt of their job had begun.

    No store can stop a handler exactly when its lease expires. The fleet's check ensures that it had expired.
    """
    ends = {(each.job, each.token): each.monotonic for each in fleet.effects.read("end")}
    later: dict[str, float] = {}
    overlaps = 0
    for each in reversed(fleet.effects.read()):
        end = ends.get((each.job, each.token))
        overlaps += end is not None and end > later.get(each.job, float("inf"))
        later[each.job] = each.monotonic
    return overlaps
