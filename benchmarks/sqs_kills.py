"""Workers and enqueuers killed in pairs while SQS loses and doubles messages: rows, effects, events and messages tell.

Every process is a real one: PostgreSQL, an endpoint of SQS, three workers, two enqueuers. One
of each kind is killed every two seconds. A job that is not final in the end, that had two holders at once,
whose death was not told exactly as it should be, or whose message stays for longer than two visibility
timeouts raises: there are no figures then.
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
from tests.support.worker_fleet import LIMIT, Fleet
from tests.worker.test_crashes import served

if TYPE_CHECKING:
    import subprocess

    from taskharbor.core.ids import JobId
    from taskharbor.delivery.sqs import SqsTransport

JOBS: Final = 2_000
SOME: Final = 20  # that are enqueued together; one of them fails whenever it runs
AT_ONCE: Final = 80  # that are not final
LOOK: Final = 0.1  # seconds between two looks at them
SECONDS: Final = 0.15  # that a job takes
FAULTS: Final = {"lose": 0.05, "duplicate": 0.05}
WORKERS: Final = 3
ENQUEUERS: Final = 2
EVERY: Final = 2.0  # seconds between two kills
VISIBILITY: Final = timedelta(seconds=2)  # of the workers of `tests.support.worker_process`
RECEIVE: Final = 1.0  # seconds for which their receives wait
MOST: Final = 600.0  # seconds for all jobs


def figures(jobs: int = JOBS) -> dict[str, object]:
    with (
        _sqs.credentials(),
        process("--faults", json.dumps(FAULTS), "--seed", "1") as (_, url),
        _sqs.transport_to(url, visibility=VISIBILITY) as transport,
        served() as (_, fleet),
    ):
        crew = Crew(fleet, url)
        took = _kill_until_done(Load(fleet, jobs), crew)
        cleared = wait_until(lambda: _sqs.depth(url) == 0, limit=LIMIT)
        assert cleared <= 2 * VISIBILITY.total_seconds() + RECEIVE, f"messages stayed for {cleared:.1f} s"
        wait_until(lambda: not _untold(fleet), limit=LIMIT + OUTBOX_LOCK.total_seconds())
        crew.end()
        happened = control(url, {})["happened"]
        return {
            **fleet.verdict(),
            **_deaths(fleet, transport, most_lost=happened["lose"]),
            "workers killed": crew.rounds,
            "enqueuers killed": crew.rounds,
            "messages lost": happened["lose"],
            "messages doubled": happened["duplicate"],
            "handlers that ran on after their lease was lost": _ran_on(fleet),
            "seconds until all jobs were final": round(took, 1),
            "seconds until no message was left": round(cleared, 1),
        }


class Crew:
    """Workers and enqueuers, of which one each is killed and replaced, the oldest first."""

    def __init__(self, fleet: Fleet, url: str) -> None:
        self._fleet, self._url = fleet, url
        self._workers = [self._start(sends=False) for _ in range(WORKERS)]
        self._enqueuers = [self._start(sends=True) for _ in range(ENQUEUERS)]
        self.rounds = 0

    def kill_one_of_each(self) -> None:
        for crew, sends in ((self._workers, False), (self._enqueuers, True)):
            victim = crew.pop(0)
            assert victim.poll() is None, f"one ended by itself:\n{self._fleet.said()}"
            victim.kill()
            victim.wait(LIMIT)
            crew.append(self._start(sends=sends))
        self.rounds += 1

    def end(self) -> None:
        for each in self._workers + self._enqueuers:
            self._fleet.end(each)

    def _start(self, *, sends: bool) -> subprocess.Popen[bytes]:
        return self._fleet.start(sqs=self._url, sends=sends)


class Load:
    """Jobs for the fleet: never many at once, or all would be sent again and again before they are claimed."""

    def __init__(self, fleet: Fleet, jobs: int) -> None:
        self._fleet, self._jobs = fleet, jobs
        self._open: list[JobId] = []

    def is_over(self) -> bool:
        """Look after it, and tell whether all jobs are final."""
        found = self._fleet.driver.inspector.get(self._open)
        self._open = [job.id for job in found.values() if job.status not in FINAL]
        if len(self._open) < AT_ONCE and len(self._fleet.jobs) < self._jobs:
            self._open += self._fleet.enqueue(SOME - 1, seconds=SECONDS)
            # This one dies: it is longer than a thread can wait, so that every attempt fails.
            self._open += self._fleet.enqueue(1, job_type="plain", seconds=1e300, max_attempts=2)
        return not self._open


def _kill_until_done(load: Load, crew: Crew) -> float:
    start = time.monotonic()

    def is_done() -> bool:
        if time.monotonic() > start + (crew.rounds + 1) * EVERY:
            crew.kill_one_of_each()
        threading.Event().wait(LOOK)
        return load.is_over() and crew.rounds > 0

    return wait_until(is_done, limit=MOST)


def _dead(fleet: Fleet) -> list[JobId]:
    return [job.id for job in fleet.driver.inspector.get(fleet.jobs).values() if job.status is Status.DEAD]


def _untold(fleet: Fleet) -> int:
    return sum(not row.is_done for row in fleet.driver.inspector.outbox(_dead(fleet)))


def _deaths(fleet: Fleet, transport: SqsTransport, *, most_lost: int) -> dict[str, Any]:
    """Every death has one row in the outbox, and its event came under one id, unless the endpoint lost it."""
    dead, rows = _dead(fleet), fleet.driver.inspector.outbox(_dead(fleet))
    assert sorted(row.event.job_id for row in rows) == sorted(dead), "a death has no row in the outbox, or several"
    assert all(row.published_at for row in rows), "an event was given up"
    told = _events(transport)
    known = {row.event.event_id: str(row.event.job_id) for row in rows}
    assert {event_id: known.get(event_id) for event_id, _ in told} == dict(told), "an event tells of another death"
    times = Counter(event_id for event_id, _ in told)
    missing = len(known.keys() - times.keys())
    assert missing <= most_lost, f"{missing} events did not come, and no more than {most_lost} messages were lost"
    return {
        "outbox rows": len(rows),
        "events that came": len(times),
        "events that came more than once": {event_id: n for event_id, n in times.items() if n > 1},
        "events that the endpoint lost": missing,
    }


def _events(transport: SqsTransport) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []
    while found := transport.receive(DEAD_EVENTS_QUEUE, most=10, wait=timedelta(0), visibility=timedelta(minutes=10)):
        events = [json.loads(each.body) for each in found]
        told += [(event["event_id"], event["job_id"]) for event in events]
    return told


def _ran_on(fleet: Fleet) -> int:
    """Return how many handlers ended after another attempt at their job had begun.

    No store can stop a handler the very moment its lease is over. The verdict holds that it was over.
    """
    ends = {(each.job, each.token): each.monotonic for each in fleet.effects.read("end")}
    later: dict[str, float] = {}
    ran_on = 0
    for each in reversed(fleet.effects.read()):
        end = ends.get((each.job, each.token))
        ran_on += end is not None and end > later.get(each.job, float("inf"))
        later[each.job] = each.monotonic
    return ran_on
