"""Many worlds, on all cores."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from taskharbor.testing.simulation.history import DriverCall, Note
from taskharbor.testing.simulation.run import simulate
from taskharbor.testing.simulation.sightings import coverage_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from taskharbor.testing.simulation.history import History
    from taskharbor.testing.simulation.run import Mode

MISHAPS: Final = {
    "is paused": "a process was stopped in a call",
    "is frozen": "a process was stopped",
    "is killed by": "a process was killed by a job",
    "is told to stop": "a worker was told to stop",
    "sets the store's clock": "the store's clock jumped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReport:
    """What became of one world. Its seed shows all of it again."""

    seed: int
    mode: Mode
    violations: tuple[str, ...]
    seen: frozenset[str]
    digest: str
    happenings: int
    jobs: int
    faults: Mapping[str, int]
    """What went wrong, and how often: calls by their fate, and what befell processes and the store's clock."""

    def __str__(self) -> str:
        return f"{self.violations[0]}\n    python -m taskharbor.testing.simulation {self.seed} {self.mode}"


def run_seed(seed: int, mode: Mode = "polling") -> SeedReport:
    """Let the world of *seed* happen, and say what became of it."""
    history = simulate(seed, mode)
    return SeedReport(
        seed=seed,
        mode=mode,
        violations=tuple(history.violations),
        seen=frozenset(coverage_of(history)),
        digest=history.digest(),
        happenings=len(history.happenings),
        jobs=sum(1 for call in _calls(history) for move in call.moves if move.before is None),
        faults=_faults(history),
    )


def _calls(history: History) -> Iterator[DriverCall]:
    return (each for each in history.happenings if isinstance(each, DriverCall))


def _faults(history: History) -> dict[str, int]:
    fates = Counter(f"a call was {call.fate}" for call in _calls(history) if call.fate != "ok")
    notes = [each.what for each in history.happenings if isinstance(each, Note)]
    return fates | Counter(name for what in notes for told, name in MISHAPS.items() if what.startswith(told))


def run_seeds(seeds: Iterable[int], mode: Mode = "polling") -> Iterator[SeedReport]:
    """Let many worlds happen; yield their verdicts as they come, in the order of *seeds*."""
    context = multiprocessing.get_context("spawn")  # whoever calls this may have threads
    with context.Pool(os.cpu_count(), initializer=_be_quiet) as pool:
        yield from pool.imap(partial(run_seed, mode=mode), seeds, chunksize=5)


def _be_quiet() -> None:
    logging.disable(logging.CRITICAL)  # workers tell of every fault, and a batch of worlds has thousands
