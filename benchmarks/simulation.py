"""Run simulations with new seeds for five minutes: half of the time in mode "polling", half in mode "sqs".

A violation raises with its seed, so there are no figures.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from taskharbor.testing.simulation import REQUIRED_COVERAGE, REQUIRED_MESSAGE_COVERAGE, run_seeds

if TYPE_CHECKING:
    from taskharbor.testing.simulation import Mode, SeedReport

RUN_SECONDS: Final = 300.0
BATCH: Final = 1_000
FIRST: Final = 1_000_000  # beyond the seeds of the tests


def figures(seconds: float = RUN_SECONDS, first: int = FIRST) -> dict[str, object]:
    return {
        "polling": _run_mode("polling", seconds / 2, first, REQUIRED_COVERAGE),
        "by messages": _run_mode("sqs", seconds / 2, first, REQUIRED_MESSAGE_COVERAGE),
    }


def _run_mode(mode: Mode, seconds: float, first: int, expected: frozenset[str]) -> dict[str, object]:
    start = time.monotonic()
    tally = Tally()
    while time.monotonic() - start < seconds:
        for report in run_seeds(range(first + tally.worlds, first + tally.worlds + BATCH), mode):
            tally.add(report)
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
    """The totals of many simulations."""

    def __init__(self) -> None:
        self.worlds = self.jobs = self.happenings = 0
        self.faults: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def add(self, report: SeedReport) -> None:
        if report.violations:
            raise RuntimeError(str(report))
        self.worlds += 1
        self.jobs += report.jobs
        self.happenings += report.happenings
        self.faults.update(report.faults)
        self.seen.update(report.seen)
