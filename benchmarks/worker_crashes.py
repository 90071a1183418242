"""Worker processes that are killed at every call of the store, stopped for leases on end, and left without a store.

A job that is lost, that has two holders at once or whose attempts are not counted right raises,
and so do workers that do not run jobs again within five seconds: there are no figures then.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.worker.fleet import Fleet
from tests.worker.test_crashes import BACK_WITHIN, VERBS, kill_at, outlive, pause_workers, served

ROUNDS: Final = 3  # at the first, second and third call of each verb
AT_ONCE: Final = 6  # doomed workers: more of them, and two cores do nothing but start Python
PAUSES: Final = [0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0]  # leases
AWAY: Final = 60.0  # seconds


def figures() -> dict[str, object]:
    with TemporaryDirectory() as name:
        sqlite = _torment(str(Path(name) / "jobs.db"), Path(name))
    with served() as (server, fleet):
        away = outlive(server, fleet, seconds=AWAY)
        assert away < BACK_WITHIN, f"it took {away:.1f} s until everybody worked again"
    with served() as (server, _), TemporaryDirectory() as name:
        postgres = _torment(server.url, Path(name))
    return {
        "sqlite": sqlite,
        "postgresql": postgres,
        "seconds without a store": AWAY,
        "seconds until all worked again": round(away, 3),
    }


def _torment(url: str, folder: Path) -> dict[str, int]:
    points = [(verb, when, nth + 1) for nth in range(ROUNDS) for verb in VERBS for when in ("before", "after")]
    killed = 0
    with Fleet.at(url, folder) as fleet:
        for first in range(0, len(points), AT_ONCE):
            killed += kill_at(fleet, points[first : first + AT_ONCE])["killed"]
        pause_workers(fleet, PAUSES)
        return fleet.verdict() | {"workers killed": killed, "workers paused": len(PAUSES)}
