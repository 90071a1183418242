"""Databases to measure on, and rounds that measure the designs in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from benchmarks._storage.designs import DESIGNS, ONE_TABLE, Design
from benchmarks._storage.load import PAYLOAD, connect
from benchmarks._storage.sql import BACKLOG

if TYPE_CHECKING:
    from benchmarks._storage.contention import Report
    from taskharbor.testing.postgres import PostgresServer

RATE: Final = "jobs a second"

Figures = dict[str, float]
Measure = Callable[[Design, str], Figures]  # of a design, on the database at a URL


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    server: PostgresServer
    scale: float
    rounds: int
    _stocks: dict[str, str] = field(default_factory=dict)

    def size(self, full: int, batch: int = 1) -> int:
        """Return *full* at this scale, rounded to batches, and at least ten batches."""
        return max(10, round(full * self.scale / batch)) * batch

    def in_turns(
        self, measure: Measure, *, backlog: int = 0, history: int = 0, anew: bool = False
    ) -> dict[str, Figures]:
        """Measure every design in every round, and return the medians.

        A design keeps its database from round to round, unless *anew* asks for a fresh copy.
        """
        names, rounds = [*DESIGNS], []
        stocks = {name: self._stock(DESIGNS[name], backlog, history, "copied" if anew else "used") for name in names}
        for number in range(self.rounds):
            first = number % len(names)  # rotate the order, so that no design is always first or last
            order = names[first:] + names[:first]
            rounds.append({name: self._once(measure, DESIGNS[name], stocks[name], anew=anew) for name in order})
        return {name: _medians([(each[name], each[ONE_TABLE.name]) for each in rounds]) for name in names}

    def _once(self, measure: Measure, design: Design, stock: str, *, anew: bool) -> Figures:
        if not anew:
            return measure(design, self._stocks[stock])
        figures = measure(design, self.server.database("copy", template=stock))
        self.server.drop("copy")
        return figures

    def _stock(self, design: Design, backlog: int, history: int, purpose: str) -> str:
        """Return the name of a database with this many jobs, created if needed."""
        name = f"{design.name}, {backlog} and {history}, {purpose}"
        if name not in self._stocks:
            self._stocks[name] = self.server.database(name)
            _fill(self._stocks[name], design, backlog, history)
        return name


def rates(report: Report) -> Figures:
    return {
        RATE: round(report.jobs / (report.ended - report.started)),
        "microseconds of the server a job": round(report.server * 1e6 / report.jobs, 1),
        "claims repeated, of a hundred": round(100 * report.repeated / report.claims, 1),
    }


def _medians(pairs: list[tuple[Figures, Figures]]) -> Figures:
    own = [pair[0] for pair in pairs]
    figures: Figures = {name: statistics.median(each[name] for each in own) for name in own[0]}
    if RATE in figures:
        figures["times one table"] = round(statistics.median(one[RATE] / other[RATE] for one, other in pairs), 2)
    return figures


def _fill(url: str, design: Design, backlog: int, history: int) -> None:
    with connect(url, pinned=False) as connection:
        connection.execute(design.schema, prepare=False)
        connection.execute(design.history, {"count": history, "payload": PAYLOAD})
        connection.execute(BACKLOG, {"count": backlog, "payload": PAYLOAD})
        connection.execute("VACUUM ANALYZE", prepare=False)
