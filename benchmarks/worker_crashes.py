"""Worker processes that are killed at every call of the store, stopped for leases on end, and left without a store.

A job that is lost, that has two holders at once or whose attempts are not counted right raises,
and so do workers that do not run jobs again within five seconds: there are no figures then.
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
from tests.support.worker_fleet import LIMIT, Fleet
from tests.worker.test_crashes import (
    BACK_WITHIN,
    BY_MESSAGES,
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
SENDS: Final = ("dispatch", "record_dispatch")  # what an enqueuer calls
FAULTS: Final = {"duplicate": 0.5}  # what is declined is a message of a job that is done
DYING: Final = 4  # jobs in every twenty, where events of deaths are sent
AT_ONCE: Final = 6  # doomed workers: more of them, and two cores do nothing but start Python
PAUSES: Final = [0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0]  # leases
AWAY: Final = 60.0  # seconds
VISIBILITY: Final = timedelta(seconds=2)


def figures() -> dict[str, object]:
    with TemporaryDirectory() as name:
        sqlite = _torment(str(Path(name) / "jobs.db"), Path(name))
    with served() as (server, fleet):
        away = outlive(server, fleet, seconds=AWAY)
        assert away < BACK_WITHIN, f"it took {away:.1f} s until everybody worked again"
    with served() as (server, _), TemporaryDirectory() as name:
        postgres = _torment(server.url, Path(name))
    with served() as (_, fleet):
        by_messages = _torment_by_messages(fleet)
    return {
        "sqlite": sqlite,
        "postgresql": postgres,
        "postgresql, by messages": by_messages,
        "seconds without a store": AWAY,
        "seconds until all worked again": round(away, 3),
    }


def _torment(url: str, folder: Path) -> dict[str, Any]:
    with Fleet.at(url, folder) as fleet:
        killed = _kill(fleet, VERBS)
        pause_workers(fleet, PAUSES)
        figures = fleet.verdict()
    apart = folder / "apart"
    apart.mkdir()
    with Fleet.at(url, apart) as fleet:
        end_under_load(fleet)
        given_back = fleet.verdict()["attempts given back"]
    return {
        **figures,
        "workers killed at": killed,
        "leases for which a worker was stopped": PAUSES,
        "attempts given back by a worker told to end": given_back,
    }


def _torment_by_messages(fleet: Fleet) -> dict[str, Any]:
    with (
        _sqs.credentials(),
        process("--faults", json.dumps(FAULTS), "--seed", "1") as (_, url),
        _sqs.transport_to(url, visibility=VISIBILITY),
    ):
        crew = [fleet.start(sqs=url), fleet.start(sqs=url, sends=True)]
        workers = _kill(fleet, BY_MESSAGES, sqs=url, dying=DYING)
        enqueuers = _kill(fleet, SENDS, sqs=url, sends=True)
        wait_until(lambda: _sqs.depth(url) == 0, limit=LIMIT)
        wait_until(lambda: all(row.is_done for row in fleet.driver.inspector.outbox(fleet.jobs)), limit=LIMIT)
        for each in crew:
            fleet.end(each)
        return {**fleet.verdict(), "workers killed at": workers, "enqueuers killed at": enqueuers}


def _kill(fleet: Fleet, verbs: Collection[str], **options: Any) -> dict[str, int]:
    """Let workers die at calls of all *verbs*; return how many did at each."""
    points = [
        (verb, when, nth + 1)
        for nth in range(ROUNDS)
        for verb in verbs
        for when in SIDES
        if nth == 0 or verb not in RARE
    ]
    for first in range(0, len(points), AT_ONCE):
        kill_at(fleet, points[first : first + AT_ONCE], **options)
    return dict(Counter(f"{when} {verb}" for verb, when, _ in points))
