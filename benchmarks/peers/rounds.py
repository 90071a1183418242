"""The rounds of a run: what a claim uses is measured in each of them, all else in time that the claims do not need."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from benchmarks.peers.claims import claimed
from benchmarks.peers.measures import Failed
from benchmarks.peers.plan import MEASURES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.peers.claims import Measured
    from benchmarks.peers.plan import Cell, Values

MAX_ROUNDS_WITHOUT_CLAIM: Final = 3
MAX_FAILURES: Final = 2
"""What has failed so often is not measured again."""


class Rounds:
    """The values of one run, round by round."""

    def __init__(self, measure: Callable[[Cell], Values], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._measure, self._clock = measure, clock
        self.measured: Measured = defaultdict(lambda: defaultdict(dict))
        self.missing: dict[str, str] = {}
        self._tries: dict[tuple[str, str], int] = defaultdict(int)
        self._failures: dict[tuple[str, str], int] = defaultdict(int)
        self._number = 0

    def run(self, chosen: Sequence[Cell], *, count: int, minutes: float, save: Callable[[], None]) -> None:
        """Measure for *count* rounds, but start nothing after *minutes*; *save* is called after each measurement."""
        needed = [cell for cell in chosen if cell.key in claimed()]
        others = [cell for cell in chosen if cell.key not in claimed()]
        ends = self._clock() + 60 * minutes
        longest = 0.0
        for self._number in range(1, count + 1):
            start = self._clock()
            self._measure_all(needed, until=ends, save=save)
            is_first = self._number == 1  # it also makes the databases, so it does not show how long a round takes
            longest = longest if is_first else max(longest, self._clock() - start)
            if needed and is_first and count > 1:
                continue
            left = count - self._number
            spare = ends - self._clock() - left * longest
            due = [cell for cell in others if self._tries[cell.key] < MAX_ROUNDS_WITHOUT_CLAIM]
            due.sort(key=lambda cell: self._tries[cell.key])
            self._measure_all(due, until=self._clock() + spare / (left + 1), save=save)

    def _measure_all(self, cells: Sequence[Cell], *, until: float, save: Callable[[], None]) -> None:
        for cell in cells:
            if self._clock() >= until:
                return
            if self._failures[cell.key] >= MAX_FAILURES:
                continue
            self._tries[cell.key] += 1
            title = f"{MEASURES[cell.measure].title}, {cell.label}"
            try:
                values = self._measure(cell)
            except Failed as error:
                self._failures[cell.key] += 1
                self.missing[title] = str(error)
                print(f"round {self._number}: {title}: NOT MEASURED: {error}", flush=True)
            else:
                self._add(cell, values)
                shown = ", ".join(f"{value:,.4g} {unit}" for unit, value in values.items() if "CPU" not in unit)
                print(f"round {self._number}: {title}: {shown}", flush=True)
            save()

    def _add(self, cell: Cell, values: Values) -> None:
        for unit, value in values.items():
            rounds = self.measured[cell.measure][unit].setdefault(cell.label, [])
            rounds += [None] * (self._number - 1 - len(rounds)) + [round(value, 4)]
