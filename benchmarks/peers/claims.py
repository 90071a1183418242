"""The ratios that a run must show, computed from the values of one run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.peers.catalog import OURS, OURS_ON_SQLITE, POSTGRESQL, SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.peers.catalog import System

RATE: Final = "jobs/s"
PERCENTILES: Final = (50, 95, 99)
FEW: Final = 10_000
"""Jobs that wait behind those that are drained, where the backlog is small."""
LAST_TENTH: Final = "rate of the last tenth / of the first"
WITH_HISTORY: Final = "rate / with none"
WITH_BACKLOG: Final = f"rate / with {FEW:,} waiting"
CALLS: Final = "calls/job"
CPU_UNITS: Final = ("worker CPU, µs/job", "server CPU, µs/job")

BY_DEFAULT: Final = f"{OURS} (installed)"
TUNED: Final = f"{OURS} (tuned)"
GRAPHILE: Final = "graphile (tuned)"
PGQUEUER: Final = "pgqueuer (tuned)"
SLOW_JOBS: Final = 100_000
"""A system that drains no more jobs than this in ten seconds is slow."""
BEST_PEER: Final = "best PostgreSQL peer"

Measured = dict[str, dict[str, dict[str, list[float | None]]]]
"""By measure, unit and label of a system: the value of each round, None if it was not measured in that round."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands in what was measured."""

    measure: str
    label: str
    unit: str = RATE

    def values(self, measured: Measured) -> list[float | None]:
        return measured.get(self.measure, {}).get(self.unit, {}).get(self.label, [])


@dataclass(frozen=True, slots=True)
class Claim:
    """A ratio of two values of the same round, or one value, and what it must be."""

    text: str
    value: Place
    other: Place | None
    must: float
    goal: float
    is_upper_limit: bool = False

    @property
    def sign(self) -> str:
        return "≤" if self.is_upper_limit else "≥"

    def holds(self, found: float) -> bool:
        return found <= self.must if self.is_upper_limit else found >= self.must


def _claims() -> Iterator[Claim]:
    default, tuned = Place("drain1", BY_DEFAULT), Place("drain1", TUNED)
    graphile, pgqueuer = Place("drain1", GRAPHILE), Place("drain1", PGQUEUER)
    yield Claim("drain, 1 process, concurrency 1,000 / tuned Graphile", tuned, graphile, 1.0, 1.5)
    two = Place("drain2", TUNED), Place("drain2", GRAPHILE)
    yield Claim("drain, 2 processes, concurrency 1,000 / tuned Graphile", *two, 1.0, 1.5)
    yield Claim("drain, all defaults, async handlers / PgQueuer", default, pgqueuer, 2.5, 4.0)
    yield Claim("drain, all defaults, async handlers / tuned Graphile", default, graphile, 0.85, 1.3)
    yield Claim("drain, all defaults, sync handlers / PgQueuer", Place("sync1", BY_DEFAULT), pgqueuer, 2.5, 4.0)
    bulk = Place("bulk", TUNED), Place("bulk", BEST_PEER)
    yield Claim("bulk enqueue, typed / best PostgreSQL peer", *bulk, 1.4, 2.0)
    yield Claim("single enqueue / PgQueuer", Place("single", TUNED), Place("single", PGQUEUER), 1.0, 1.2)
    for each in PERCENTILES:
        ours, theirs = (Place("latency", label, f"p{each}, ms") for label in (BY_DEFAULT, GRAPHILE))
        yield Claim(f"start latency p{each} / Graphile", ours, theirs, 1.0, 0.7, is_upper_limit=True)
    yield Claim("last tenth under an old snapshot / first", Place("snapshot", TUNED, LAST_TENTH), None, 0.9, 1.0)
    backlog = Place("backlog", TUNED, WITH_BACKLOG)
    yield Claim(f"rate with a large backlog / with {FEW:,} waiting", backlog, None, 0.85, 1.0)
    sqlite = Place("sync1", f"{OURS_ON_SQLITE} (installed)"), Place("sync1", "huey-sqlite (tuned)")
    yield Claim("SQLite drain / Huey on SQLite", *sqlite, 5.0, 10.0)
    calls = Place("sqs", TUNED, CALLS)
    yield Claim("SQS calls per job under backlog, bundles of 10", calls, None, 0.05, 0.01, is_upper_limit=True)


CLAIMS: Final = tuple(_claims())


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run shows about a claim: values of the rounds, empty if it was not measured."""

    claim: Claim
    beside: str
    values: Sequence[float]

    @property
    def word(self) -> str:
        if not self.values:
            return "not measured"
        return "met" if self.claim.holds(median(self.values)) else "missed"


def verdicts(measured: Measured) -> list[Verdict]:
    return [_verdict(claim, measured) for claim in CLAIMS]


def claimed() -> set[tuple[str, str]]:
    """Return the measures and labels of systems that claims use."""
    places = [place for claim in CLAIMS for place in (claim.value, claim.other) if place]
    # Any of them may be the best at bulk enqueues, but not one that is slow at everything.
    peers = [("bulk", _label(peer)) for peer in _postgres_peers() if peer.most > SLOW_JOBS]
    return {*((place.measure, place.label) for place in places), *peers}


def _postgres_peers() -> list[System]:
    """Return the other systems on PostgreSQL that enqueue in bulk, without the loop that is no system."""
    return [each for each in SYSTEMS if each.store == POSTGRESQL and each.bulk and not each.ours and each.name != "raw"]


def _label(peer: System) -> str:
    return f"{peer.name} (tuned)"


def ratios(values: Sequence[float | None], others: Sequence[float | None]) -> list[float]:
    """Return the ratios of those rounds in which both were measured."""
    return [value / other for value, other in zip(values, others, strict=False) if value and other]


def _verdict(claim: Claim, measured: Measured) -> Verdict:
    values, other = claim.value.values(measured), claim.other
    if other is None:
        return Verdict(claim, "", [value for value in values if value is not None])
    if other.label == BEST_PEER:
        other = replace(other, label=_best(measured.get(other.measure, {}).get(other.unit, {})))
    return Verdict(claim, other.label, ratios(values, other.values(measured)))


def _best(found: dict[str, list[float | None]]) -> str:
    """Return the label of the PostgreSQL peer with the highest median."""
    labels = [_label(peer) for peer in _postgres_peers()]
    medians = {
        label: median(known)
        for label, values in found.items()
        if label in labels and (known := [value for value in values if value is not None])
    }
    return max(medians, key=lambda label: medians[label], default="")
