"""The ledger of the demo: it compares the store's rows with the log of the handlers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from taskharbor import Status
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.states import FINAL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from taskharbor.cli.demo.handlers import Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRun:
    """One attempt in the handlers' log. It ended when the handler logged that, or else when its process died."""

    job: str
    began: float
    ended: float
    was_killed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    accepted: int
    succeeded: int
    dead: int
    unfinished: int
    lost: int
    overlapping: int
    failed_attempts: int
    lost_attempts: int
    recoveries: tuple[float, ...]

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.overlapping or self.unfinished)

    def lines(self) -> list[str]:
        worst, usual = max(self.recoveries, default=math.nan), median(self.recoveries or [math.nan])
        return [
            f"accepted {self.accepted} · succeeded {self.succeeded} · dead {self.dead} · unfinished {self.unfinished}",
            f"lost {self.lost} · overlapping {self.overlapping}",
            f"attempts: {self.failed_attempts} failed, {self.lost_attempts} lost with their worker",
            f"recovery, from the death of a worker to the next attempt: median {usual:.1f} s, longest {worst:.1f} s",
        ]


def ledger(
    accepted: Collection[str],
    stored: Mapping[str, Status],
    attempts: Iterable[AttemptOutcome],
    effects: Sequence[Effect],
) -> Ledger:
    """Return the ledger. A job is lost if it is missing, or if it succeeded although no handler finished."""
    runs = runs_in(effects)
    done = {effect.job for effect in effects if effect.what == "done"}
    missing = [job for job in accepted if job not in stored]
    unconfirmed = [job for job, status in stored.items() if status is Status.SUCCEEDED and job not in done]
    statuses, history = Counter(stored.values()), Counter(attempts)
    return Ledger(
        accepted=len(accepted),
        succeeded=statuses[Status.SUCCEEDED],
        dead=statuses[Status.DEAD],
        unfinished=sum(count for status, count in statuses.items() if status not in FINAL),
        lost=len(missing) + len(unconfirmed),
        overlapping=overlapping(runs),
        failed_attempts=history[AttemptOutcome.FAILED],
        lost_attempts=history[AttemptOutcome.LOST],
        recoveries=recoveries(runs),
    )


def runs_in(effects: Sequence[Effect]) -> list[HandlerRun]:
    ends = {(effect.job, effect.token): effect.at for effect in effects if effect.what in {"done", "failed"}}
    deaths = {effect.pid: effect.at for effect in effects if effect.what == "died"}
    return [
        HandlerRun(
            job=effect.job,
            began=effect.at,
            ended=ends.get((effect.job, effect.token), deaths.get(effect.pid, math.inf)),
            was_killed=(effect.job, effect.token) not in ends,
        )
        for effect in effects
        if effect.what == "begin"
    ]


def overlapping(runs: Iterable[HandlerRun]) -> int:
    """Count the attempts that began before the previous attempt of the same job had ended."""
    return sum(later.began < earlier.ended for earlier, later in _successions(runs))


def recoveries(runs: Iterable[HandlerRun]) -> tuple[float, ...]:
    """Return, for each attempt lost with its worker, the seconds until the next attempt began."""
    return tuple(later.began - earlier.ended for earlier, later in _successions(runs) if earlier.was_killed)


def _successions(runs: Iterable[HandlerRun]) -> list[tuple[HandlerRun, HandlerRun]]:
    by_job: defaultdict[str, list[HandlerRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.began):
        by_job[run.job].append(run)
    return [pair for of_job in by_job.values() for pair in pairwise(of_job)]
