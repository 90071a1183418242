"""As many simulated worlds as fit into five minutes, each of another seed: half of that time for those with messages.

A world in which a promise is broken raises, with the seed that shows it again: there are no figures then.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from taskharbor.testing.simulation import REQUIRED_COVERAGE, REQUIRED_MESSAGE_COVERAGE, run_seeds

if TYPE_CHECKING:
    from taskharbor.testing.simulation import Mode, SeedReport

SECONDS: Final = 300.0
BATCH: Final = 1_000
FIRST: Final = 1_000_000  # not those that every run of the tests goes through


def figures(seconds: float = SECONDS, first: int = FIRST) -> dict[str, object]:
    return {
        "polling": _worlds("polling", seconds / 2, first, REQUIRED_COVERAGE),
        "by messages": _worlds("sqs", seconds / 2, first, REQUIRED_MESSAGE_COVERAGE),
    }


def _worlds(mode: Mode, seconds: float, first: int, expected: frozenset[str]) -> dict[str, object]:
    start = time.monotonic()
    tally = Tally()
    while time.monotonic() - start < seconds:
        for verdict in run_seeds(range(first + tally.worlds, first + tally.worlds + BATCH), mode):
            tally.take(verdict)
    if missing := expected - set(tally.seen):
        raise RuntimeError(f"never seen: {sorted(missing)}")
    return {
        "first seed": first,
        "worlds": tally.worlds,
        "worlds a second": round(tally.worlds / (time.monotonic() - start), 1),
        "jobs": tally.jobs,
        "happenings a world": round(tally.happenings / tally.worlds),
        "faults": dict(sorted(tally.faults.items())),
        "violations": 0,
        "seen in worlds": dict(sorted(tally.seen.items())),
    }


class Tally:
    """What many worlds add up to."""

    def __init__(self) -> None:
        self.worlds = self.jobs = self.happenings = 0
        self.faults: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def take(self, verdict: SeedReport) -> None:
        if verdict.violations:
            raise RuntimeError(str(verdict))
        self.worlds += 1
        self.jobs += verdict.jobs
        self.happenings += verdict.happenings
        self.faults.update(verdict.faults)
        self.seen.update(verdict.seen)
