"""What is measured: the work of each measure, and the systems and settings that do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.peers.catalog import OURS, POSTGRESQL
from benchmarks.peers.claims import CPU_UNITS, FEW, LAST_TENTH, PERCENTILES, RATE, WITH_BACKLOG, WITH_HISTORY
from benchmarks.peers.databases import ROWS
from benchmarks.peers.sqs_calls import sqs_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.peers.catalog import System
    from benchmarks.peers.measures import Trial

Values = dict[str, float]
"""What a measure finds, by unit."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work the measures do."""

    single: int
    bulk: int
    drain: int
    slow: int
    latency_seconds: int
    history: int
    snapshot: int
    backlog: int
    sqs: int
    max_seconds: float
    """How long a drain may take; what has finished by then counts."""


FULL: Final = Sizes(
    single=2_000,
    bulk=50_000,
    drain=100_000,
    slow=2_000,
    latency_seconds=8,
    history=1_000_000,
    snapshot=200_000,
    backlog=10_000_000,
    sqs=5_000,
    max_seconds=5.0,
)
QUICK: Final = Sizes(
    single=500,
    bulk=10_000,
    drain=10_000,
    slow=400,
    latency_seconds=3,
    history=100_000,
    snapshot=40_000,
    backlog=100_000,
    sqs=1_000,
    max_seconds=3.0,
)
MAX_PEER_BACKLOG: Final = 1_000_000
"""The backlog of other systems, so that one run does not need ten times the disk."""


def single(trial: Trial, sizes: Sizes) -> Values:
    with trial.store():
        return {RATE: trial.enqueue_rate("enqueue", sizes.single)}


def callers(trial: Trial, sizes: Sizes) -> Values:
    with trial.store():
        return {RATE: trial.enqueue_rate("callers", 4 * sizes.single, 32)}


def bulk(trial: Trial, sizes: Sizes) -> Values:
    with trial.store():
        return {RATE: trial.enqueue_rate("bulk", sizes.bulk)}


def drain(handlers: str, processes: int) -> Callable[[Trial, Sizes], Values]:
    """Return a measure of a drain by so many processes, with async or sync handlers."""

    def measure(trial: Trial, sizes: Sizes) -> Values:
        count = min(sizes.drain, trial.system.most)
        with trial.store(jobs=count):
            drained = trial.drain(count, processes=processes, handlers=handlers, max_seconds=sizes.max_seconds)
        return {
            RATE: drained.rate,
            CPU_UNITS[0]: drained.workers_cpu,
            CPU_UNITS[1]: drained.server_cpu,
        }

    return measure


def slow_handlers(milliseconds: int) -> Callable[[Trial, Sizes], Values]:
    """Return a measure of a drain with handlers that wait so long."""

    def measure(trial: Trial, sizes: Sizes) -> Values:
        count = sizes.slow if milliseconds < 50 else sizes.slow // 4
        with trial.store(jobs=count):
            drained = trial.drain(
                count,
                handlers="async" if trial.system.coroutines else "sync",
                handler_seconds=milliseconds / 1_000,
                max_seconds=sizes.max_seconds,
            )
        return {RATE: drained.rate}

    return measure


def latency(trial: Trial, sizes: Sizes) -> Values:
    with trial.store():
        found = trial.latencies(rate=50, seconds=sizes.latency_seconds)
    return {f"p{each}, ms": 1_000 * found[min(len(found) - 1, len(found) * each // 100)] for each in PERCENTILES}


def history(trial: Trial, sizes: Sizes) -> Values:
    """Compare a store with many finished jobs to an empty one, in the same minute."""
    count = min(sizes.drain, trial.system.most)
    with trial.store(jobs=count):
        empty = trial.starts(count, max_seconds=sizes.max_seconds).rate
    trial.use_history(sizes.history)
    trial.add(count)
    full = trial.starts(count, max_seconds=sizes.max_seconds).rate
    return {RATE: full, WITH_HISTORY: full / empty}


def snapshot(trial: Trial, sizes: Sizes) -> Values:
    count = min(sizes.snapshot, 2 * trial.system.most)
    with trial.store(jobs=count), trial.old_snapshot():
        starts = trial.starts(count, max_seconds=2 * sizes.max_seconds)
    return {RATE: starts.rate, LAST_TENTH: starts.last_tenth_of_first}


def backlog(trial: Trial, sizes: Sizes) -> Values:
    """Compare a store with a large backlog to one with a small one, in the same minute."""
    count = min(sizes.drain, trial.system.most)
    with trial.store(jobs=count + FEW):
        few = trial.starts(count, max_seconds=sizes.max_seconds).rate
    waiting = sizes.backlog if trial.system.ours else min(sizes.backlog, MAX_PEER_BACKLOG)
    trial.use_backlog(waiting)
    many = trial.starts(count, max_seconds=sizes.max_seconds).rate
    return {RATE: many, WITH_BACKLOG: many / few}


@dataclass(frozen=True, slots=True)
class Measure:
    """Some work, and which systems do it. It is done with all settings, or with the last one only."""

    title: str
    run: Callable[[Trial, Sizes], Values]
    applies: Callable[[System], bool] = lambda _: True
    every_setting: bool = True


def _has_handlers(system: System) -> bool:
    return system.name != "raw"


def _has_sync_handlers(system: System) -> bool:
    return system.sync and _has_handlers(system)


def _keeps_history(system: System) -> bool:
    rows = ROWS.get(system.name)
    return rows is not None and bool(rows.finished or rows.history)


MEASURES: Final = {
    "drain1": Measure("Drain, async handlers, 1 process", drain("async", 1), lambda system: system.coroutines),
    "drain2": Measure("Drain, async handlers, 2 processes", drain("async", 2), lambda system: system.coroutines),
    "sync1": Measure("Drain, sync handlers, 1 process", drain("sync", 1), _has_sync_handlers),
    "sync2": Measure("Drain, sync handlers, 2 processes", drain("sync", 2), _has_sync_handlers),
    "single": Measure("Enqueue one by one", single, every_setting=False),
    "callers": Measure("Enqueue from 32 callers", callers, lambda system: system.callers, every_setting=False),
    "bulk": Measure("Enqueue in bulk", bulk, lambda system: system.bulk, every_setting=False),
    "latency": Measure("Start latency at 50 jobs/s", latency),
    "slow5": Measure("Drain, handlers of 5 ms", slow_handlers(5), _has_handlers),
    "slow100": Measure("Drain, handlers of 100 ms", slow_handlers(100), _has_handlers),
    "snapshot": Measure(
        "Drain while a transaction stays open", snapshot, lambda system: system.store == POSTGRESQL, every_setting=False
    ),
    "history": Measure("Drain with many finished jobs", history, _keeps_history, every_setting=False),
    "backlog": Measure("Drain with a large backlog", backlog, lambda system: system.name in ROWS, every_setting=False),
    "sqs": Measure(
        "Delivery by SQS, bundles of 10", sqs_calls, lambda system: system.name == OURS, every_setting=False
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A measure of a system with a setting."""

    measure: str
    system: System
    setting: str

    @property
    def label(self) -> str:
        return f"{self.system.name} ({self.setting})"

    @property
    def key(self) -> tuple[str, str]:
        return self.measure, self.label


def cells(systems: Sequence[System], measures: Sequence[str], settings: Sequence[str]) -> Iterator[Cell]:
    """Yield what is to be measured, in an order in which those that are compared follow each other."""
    for measure in measures:
        for system in systems:
            if not MEASURES[measure].applies(system):
                continue
            chosen = [setting for setting in settings if setting in system.settings]
            for setting in chosen if MEASURES[measure].every_setting else chosen[-1:]:
                yield Cell(measure, system, setting)
