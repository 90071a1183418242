"""The tables of a run, as text for a terminal and as Markdown for the page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import floor, log10
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.peers.catalog import LOSSES, SYSTEMS
from benchmarks.peers.claims import (
    CALLS,
    CPU_UNITS,
    LAST_TENTH,
    PERCENTILES,
    RATE,
    WITH_BACKLOG,
    WITH_HISTORY,
    Place,
    ratios,
    verdicts,
)
from benchmarks.peers.environments import ROOT
from benchmarks.peers.plan import MEASURES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.claims import Measured

SETTINGS: Final = ("installed", "tuned")
SETTINGS_HEADINGS: Final = ("system", "versions", "store", "as installed", "tuned")
FIGURES: Final = ROOT / "docs" / "figures" / "peers.json"


@dataclass(frozen=True, slots=True)
class Column:
    heading: str
    measure: str
    unit: str = RATE


@dataclass(frozen=True, slots=True)
class Group:
    """Values that are shown in one table and one plot."""

    title: str
    columns: tuple[Column, ...]
    lower_is_better: bool = False


GROUPS: Final = {
    "drain": Group(
        "Drain, jobs per second",
        (
            Column("async, 1 process", "drain1"),
            Column("async, 2 processes", "drain2"),
            Column("sync, 1 process", "sync1"),
            Column("sync, 2 processes", "sync2"),
        ),
    ),
    "enqueue": Group(
        "Enqueue, jobs per second",
        (Column("one by one", "single"), Column("32 callers", "callers"), Column("in bulk", "bulk")),
    ),
    "latency": Group(
        "Start latency at 50 jobs per second, ms",
        tuple(Column(f"p{each}", "latency", f"p{each}, ms") for each in PERCENTILES),
        lower_is_better=True,
    ),
    "waiting": Group(
        "Drain with handlers that wait, jobs per second", (Column("5 ms", "slow5"), Column("100 ms", "slow100"))
    ),
    "stores": Group(
        "Drain in a full store, relative to the same drain in a new one",
        (
            Column("finished jobs in the store", "history", WITH_HISTORY),
            Column("old snapshot: last tenth / first", "snapshot", LAST_TENTH),
            Column("large backlog", "backlog", WITH_BACKLOG),
        ),
    ),
    "cpu": Group(
        "CPU of a drain with one process, µs per job",
        (
            Column("worker", "drain1", CPU_UNITS[0]),
            Column("PostgreSQL", "drain1", CPU_UNITS[1]),
        ),
        lower_is_better=True,
    ),
    "sqs": Group(
        "Delivery by SQS, bundles of 10", (Column("calls per job", "sqs", CALLS), Column("jobs per second", "sqs"))
    ),
}


@dataclass(frozen=True, slots=True)
class Summary:
    """The median of some rounds and their spread."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{number(self.median)} ({number(self.low)}-{number(self.high)})"


def load() -> dict[str, Any] | None:
    """Return the report of the last run, or None if there is none."""
    return json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else None


def added(earlier: dict[str, Any], ran: dict[str, Any]) -> dict[str, Any]:
    """Return the report of *earlier* with the measures that *ran* in place of its own, and the day of these."""
    days = {**earlier.get("days", {}), **dict.fromkeys(ran["measured"], ran["machine"]["date"])}
    titles = tuple(f"{MEASURES[measure].title}, " for measure in ran["measured"])
    kept = {what: reason for what, reason in earlier["not measured"].items() if not what.startswith(titles)}
    return {
        **earlier,
        "measured": earlier["measured"] | ran["measured"],
        "not measured": kept | ran["not measured"],
        "systems": earlier["systems"] | ran["systems"],
        "days": days,
    }


def summary(values: Sequence[float | None]) -> Summary | None:
    known = [value for value in values if value is not None]
    return Summary(median(known), min(known), max(known), len(known)) if known else None


def number(value: float) -> str:
    """Return a number with two or three digits that mean something."""
    if 0 < value < 0.1:
        return f"{value:.3f}"
    if value >= 100:
        digits = 2 - floor(log10(value))
        return f"{round(value, digits):,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def column_values(measured: Measured, column: Column) -> dict[str, Summary]:
    """Return the summary of each system in which the column was measured."""
    found = {label: summary(values) for label, values in measured.get(column.measure, {}).get(column.unit, {}).items()}
    return {label: each for label, each in found.items() if each is not None}


def group_rows(measured: Measured, group: Group) -> list[list[str]]:
    """Return a row for each system, best first: its label and the value of each column."""
    columns = [column_values(measured, column) for column in group.columns]
    labels = dict.fromkeys(label for column in columns for label in column)
    worst = float("inf") if group.lower_is_better else float("-inf")

    def rank(label: str) -> list[float]:
        return [column[label].median if label in column else worst for column in columns]

    ordered = sorted(labels, key=rank, reverse=not group.lower_is_better)
    return [[label, *(str(column[label]) if label in column else "-" for column in columns)] for label in ordered]


def claim_rows(measured: Measured) -> list[list[str]]:
    """Return a row for each claim: what, this run, spread, rounds, must, goal, verdict."""
    rows = []
    for each in verdicts(measured):
        found, claim = summary(each.values), each.claim
        text = f"{claim.text}, {each.beside.split(' ')[0]}" if "best" in claim.text and each.beside else claim.text
        spread = f"{number(found.low)}-{number(found.high)}" if found else "-"
        shown = [f"{found.median:.3f}", spread, str(found.rounds)] if found else ["-"] * 3
        rows.append([text, *shown, f"{claim.sign} {claim.must}", f"{claim.goal}", each.word])
    return rows


CLAIM_HEADINGS: Final = ("ratio", "this run", "min-max", "rounds", "must", "goal", "verdict")


MISSED_HEADINGS: Final = ("missed ratio", "system", "wall, µs/job", "worker CPU, µs/job", "PostgreSQL CPU, µs/job")


def missed_rows(measured: Measured) -> list[list[str]]:
    """Return where the time goes in the drains of claims that were missed: a row for each of both systems."""
    rows = []
    for each in verdicts(measured):
        places = [place for place in (each.claim.value, each.claim.other) if place and place.unit == RATE]
        for place in places if each.word == "missed" else []:
            rate, *cpu = (
                summary(Place(place.measure, place.label, unit).values(measured)) for unit in (RATE, *CPU_UNITS)
            )
            if rate and all(cpu):
                used = [number(found.median) for found in cpu if found]
                rows.append([each.claim.text, place.label, number(1e6 / rate.median), *used])
    return rows


def ratio_rows(measured: Measured) -> list[list[str]]:
    """Return the ratio of TaskHarbor to each system with the same setting, for each measure, within rounds."""
    beside = {
        f"{each.name} ({setting})": f"{each.beside} ({setting})"
        for each in SYSTEMS
        if not each.ours
        for setting in SETTINGS
    }
    rows = []
    for group in GROUPS.values():
        for column in group.columns:
            for label, values in measured.get(column.measure, {}).get(column.unit, {}).items():
                if label not in beside:  # one of ours
                    continue
                ours = Place(column.measure, beside[label], column.unit).values(measured)
                if not (found := summary(ratios(ours, values))):
                    continue
                rows.append([f"{group.title.split(',')[0]}, {column.heading}", label, str(found), str(found.rounds)])
    return rows


def settings_rows(report: dict[str, Any]) -> list[list[str]]:
    return [
        [
            name,
            ", ".join(about["versions"]) or "-",
            about["store"],
            *(about["settings"].get(each, "-") for each in SETTINGS),
        ]
        for name, about in report["systems"].items()
    ]


def gives_up_rows() -> list[list[str]]:
    """Return what the other systems do not promise, and what a power failure costs with each setting."""
    rows = []
    for system in SYSTEMS:
        if system.gives_up:
            losses = LOSSES[system.store]
            cost = [f"{losses[each]} ({each})" for each in SETTINGS if each in system.settings]
            same = len({losses[each] for each in system.settings}) == 1
            rows.append([system.name, system.gives_up, losses["tuned"] if same else ", ".join(cost)])
    return rows


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def print_report(report: dict[str, Any]) -> None:
    """Print all tables of a run; the last is that of the claims."""
    measured = report["measured"]
    _print(SETTINGS_HEADINGS, settings_rows(report))
    for group in GROUPS.values():
        if rows := group_rows(measured, group):
            _print([group.title, *(column.heading for column in group.columns)], rows)
    _print(["TaskHarbor / the other", "", "median (min-max)", "rounds"], ratio_rows(measured))
    for what, reason in report["not measured"].items():
        print(f"NOT MEASURED  {what}: {reason}")
    if rows := missed_rows(measured):
        _print(MISSED_HEADINGS, rows)
    _print(CLAIM_HEADINGS, claim_rows(measured))


def _print(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(line[place]) for line in [headings, *rows]) for place in range(len(headings))]
    print()
    for line in [headings, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
