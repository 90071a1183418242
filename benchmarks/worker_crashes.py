"""Worker processes that are killed at every store call, paused for several leases, and left without a store.

A job that is lost, that has two holders at once or has a wrong attempt count raises, and so do
workers that do not run jobs again within five seconds, so there are no figures.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from benchmarks import _sqs
from tests.delivery.test_endpoint import process
from tests.support.waiting import wait_until
from tests.support.worker_fleet import LIMIT_SECONDS, Fleet
from tests.worker.test_crashes import (
    BY_MESSAGES,
    RECOVERY_SECONDS,
    SIDES,
    VERBS,
    end_under_load,
    kill_at,
    outlive,
    pause_workers,
    served,
)

if TYPE_CHECKING:
    from collections.abc import Collection

ROUNDS: Final = 3  # at the first, second and third call of each verb
RARE: Final = ("prune", "prune_audit", "prune_workers")  # once a minute: at the first call only
SENDS: Final = ("dispatch", "record_dispatch")  # the verbs of an enqueuer
FAULTS: Final = {"duplicate": 0.5}  # workers decline duplicate messages of finished jobs
DYING: Final = 4  # jobs in every twenty, to test dead-letter events
KILL_BATCH: Final = 6  # workers killed at the same time; with more, two cores are busy starting Python
PAUSES: Final = [0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0]  # leases
OUTAGE_SECONDS: Final = 60.0
VISIBILITY: Final = timedelta(seconds=2)


def figures() -> dict[str, object]:
    with TemporaryDirectory() as name:
        sqlite = _kill_and_pause(str(Path(name) / "jobs.db"), Path(name))
    with served() as (server, fleet):
        recovered_in = outlive(server, fleet, seconds=OUTAGE_SECONDS)
        assert recovered_in < RECOVERY_SECONDS, f"it took {recovered_in:.1f} s until all workers ran jobs again"
    with served() as (server, _), TemporaryDirectory() as name:
        postgres = _kill_and_pause(server.url, Path(name))
    with served() as (_, fleet):
        by_messages = _kill_by_messages(fleet)
    return {
        "sqlite": sqlite,
        "postgresql": postgres,
        "postgresql, by messages": by_messages,
        "seconds without a store": OUTAGE_SECONDS,
        "seconds until all worked again": round(recovered_in, 3),
    }


def _kill_and_pause(url: str, folder: Path) -> dict[str, Any]:
    with Fleet.at(url, folder) as fleet:
        killed = _kill(fleet, VERBS)
        pause_workers(fleet, PAUSES)
        figures = fleet.verdict()
    second = folder / "second"
    second.mkdir()
    with Fleet.at(url, second) as fleet:
        end_under_load(fleet)
        released = fleet.verdict()["attempts released"]
    return {
        **figures,
        "workers killed at": killed,
        "leases for which a worker was paused": PAUSES,
        "attempts released by a worker that was stopped": released,
    }


def _kill_by_messages(fleet: Fleet) -> dict[str, Any]:
    with (
        _sqs.credentials(),
        process("--faults", json.dumps(FAULTS), "--seed", "1") as (_, url),
        _sqs.transport_to(url, visibility=VISIBILITY),
    ):
        survivors = [fleet.start(sqs=url), fleet.start(sqs=url, sends=True)]
        workers = _kill(fleet, BY_MESSAGES, sqs=url, dying=DYING)
        enqueuers = _kill(fleet, SENDS, sqs=url, sends=True)
        wait_until(lambda: _sqs.depth(url) == 0, limit=LIMIT_SECONDS)
        wait_until(lambda: all(row.is_done for row in fleet.driver.inspector.outbox(fleet.jobs)), limit=LIMIT_SECONDS)
        for each in survivors:
            fleet.end(each)
        return {**fleet.verdict(), "workers killed at": workers, "enqueuers killed at": enqueuers}


def _kill(fleet: Fleet, verbs: Collection[str], **options: Any) -> dict[str, int]:
    """Kill workers at calls of all *verbs*, and return the number of kills at each call."""
    points = [
        (verb, when, nth + 1)
        for nth in range(ROUNDS)
        for verb in verbs
        for when in SIDES
        if nth == 0 or verb not in RARE
    ]
    for first in range(0, len(points), KILL_BATCH):
        kill_at(fleet, points[first : first + KILL_BATCH], **options)
    return dict(Counter(f"{when} {verb}" for verb, when, _ in points))
