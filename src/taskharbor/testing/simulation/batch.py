"""Many worlds, on all cores."""

from __future__ import annotations

import logging
import multiprocessing
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from taskharbor.testing.simulation.run import simulate
from taskharbor.testing.simulation.sightings import sightings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from taskharbor.testing.simulation.run import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one world. Its seed shows all of it again."""

    seed: int
    mode: Mode
    violations: tuple[str, ...]
    seen: frozenset[str]
    digest: str
    happenings: int

    def __str__(self) -> str:
        return f"{self.violations[0]}\n    python -m taskharbor.testing.simulation {self.seed} {self.mode}"


def judge(seed: int, mode: Mode = "polling") -> Verdict:
    """Let the world of *seed* happen, and say what became of it."""
    history = simulate(seed, mode)
    return Verdict(
        seed=seed,
        mode=mode,
        violations=tuple(history.violations),
        seen=frozenset(sightings(history)),
        digest=history.digest(),
        happenings=len(history.happenings),
    )


def judge_all(seeds: Iterable[int], mode: Mode = "polling") -> Iterator[Verdict]:
    """Let many worlds happen; yield their verdicts as they come, in the order of *seeds*."""
    context = multiprocessing.get_context("spawn")  # whoever calls this may have threads
    with context.Pool(os.cpu_count(), initializer=_be_quiet) as pool:
        yield from pool.imap(partial(judge, mode=mode), seeds, chunksize=5)


def _be_quiet() -> None:
    logging.disable(logging.CRITICAL)  # workers tell of every fault, and a batch of worlds has thousands
