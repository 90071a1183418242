"""Output of commands: data and status messages, tables, times and progress lines."""

from __future__ import annotations

import json
import shutil
import sys
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from taskharbor.core.states import Status
from taskharbor.core.text import one_line
from taskharbor.settings import Settings
from taskharbor.views import iso_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from rich.table import Table

# fmt: off
_UNITS: Final = (
    (timedelta(days=1),    "d"),
    (timedelta(hours=1),   "h"),
    (timedelta(minutes=1), "m"),
    (timedelta(seconds=1), "s"),
)
# fmt: on
_DECIMAL_BELOW: Final = timedelta(seconds=10)
"""Shorter durations are shown with one decimal."""
Cell = str | int | float | datetime | timedelta | None

EMPTY_CELL: Final = "-"
_MAX_ERROR_CHARS: Final = 60
"""Of an error in a table on a terminal. In a pipe it is never cut."""
_TEXT_TITLES: Final = {"error", "why", "queues", "types", "scopes"}
"""Columns of text that is wrapped in a table on a terminal."""
_MIN_TEXT_WIDTH: Final = 16
_OPTIONAL_TITLES: Final = (
    *("life", "host", "pid", "worker", "created", "first", "due", "started", "origin", "timezone", "canceled"),
    *(
        "lost slots",
        "busy slots",
        "jobs at once",
        "version",
        "fired",
        "used",
        "ended",
        "last",
        "queue",
        "succeeded",
        "attempts",
        "types",
    ),
    *("seen", "queues", "error"),
)
"""The columns that a narrow terminal does not show, the least important first."""
_COLUMN_GAP: Final = 2
_UNPRINTABLE: Final = "\N{REPLACEMENT CHARACTER}"
_COLORS: Final = {
    Status.PROCESSING: "cyan",
    Status.FAILED: "yellow",
    Status.SUCCEEDED: "green",
    Status.DEAD: "red",
    Status.CANCELED: "magenta",
}
_REDRAW_SECONDS: Final = 0.2
"""Between two updates of a progress line on a terminal."""
_LINE_SECONDS: Final = 5.0
"""Between two progress lines elsewhere."""


def echo_data(data: Any, *, as_json: bool, plain: str) -> None:
    """Print *data* to stdout as one line of JSON, or else *plain*."""
    click.echo(json.dumps(data) if as_json else plain, color=_color())


def echo_status(text: str) -> None:
    """Print a message for people to stderr; programs should not parse it."""
    click.echo(text, err=True, color=_color())


def _color() -> bool | None:
    return False if Settings.from_env().no_color else None  # None: click decides by the stream


def span(length: timedelta) -> str:
    """Return a duration in one or two units.

    >>> [span(timedelta(seconds=n)) for n in (0.25, 5.5, 42, 90, 7200, 100_000)]
    ['250ms', '5.5s', '42s', '1m30s', '2h', '1d3h']
    """
    length = abs(length)
    if length < timedelta(seconds=1):
        return f"{length // timedelta(milliseconds=1)}ms"
    if length < _DECIMAL_BELOW:
        return f"{length.total_seconds():.1f}".removesuffix(".0") + "s"
    largest = next(index for index, (unit, _) in enumerate(_UNITS) if length >= unit)
    text = ""
    for unit, letter in _UNITS[largest : largest + 2]:
        count, length = divmod(length, unit)
        text += f"{count}{letter}" if count else ""
    return text


def relative(when: datetime, now: datetime) -> str:
    """Return *when* relative to *now*.

    >>> from datetime import UTC, datetime
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> relative(noon - timedelta(minutes=3), noon), relative(noon + timedelta(hours=2), noon)
    ('3m ago', 'in 2h')
    """
    return f"{span(now - when)} ago" if when <= now else f"in {span(when - now)}"


def print_table(titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, now: datetime, empty: str) -> None:
    """Print *rows* to stdout: as a table on a terminal, else tab-separated. If there are none, print *empty*."""
    if not rows:
        echo_status(empty)
        return
    if not sys.stdout.isatty():
        lines = [list(titles), *([format_exact(cell) for cell in row] for row in rows)]
        click.echo("\n".join("\t".join(line) for line in lines))
        return
    short = [
        [
            first_line(cell) if title == "error" and isinstance(cell, str) else cell
            for title, cell in zip(titles, row, strict=True)
        ]
        for row in rows
    ]
    shown, short = fit_columns(titles, short, now=now)
    if has_rich():
        print_rich(rich_table(shown, short, now=now))
    else:
        click.echo(aligned(shown, short, now=now))
    if omitted := [title for title in titles if title not in shown]:
        echo_status(f"the terminal is too narrow for: {', '.join(omitted)}; --json shows all")


def fit_columns(
    titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, now: datetime
) -> tuple[list[str], list[list[Cell]]]:
    """Return the columns that fit the terminal's width, at least the first one.

    Empty columns are omitted first, then those that matter least.
    """
    columns = {title: [row[index] for row in rows] for index, title in enumerate(titles)}
    empty = [title for title, cells in columns.items() if all(cell in {None, ""} for cell in cells)]
    widths = {title: _min_width(title, cells, now) for title, cells in columns.items()}
    available = shutil.get_terminal_size().columns + _COLUMN_GAP
    for title in [*empty, *_OPTIONAL_TITLES]:
        if sum(widths.values()) + _COLUMN_GAP * len(widths) <= available:
            break
        if title != titles[0]:
            widths.pop(title, None)
    kept = [title for title in titles if title in widths]
    return kept, [list(row) for row in zip(*(columns[title] for title in kept), strict=True)]


def _min_width(title: str, cells: Sequence[Cell], now: datetime) -> int:
    width = max(len(title), *(len(format_relative(cell, now)) for cell in cells))
    return min(width, _MIN_TEXT_WIDTH) if title in _TEXT_TITLES else width


def print_facts(facts: Sequence[tuple[str, Cell]], *, now: datetime) -> None:
    """Print names and values, one per line, without those that are None. A terminal gets long text on several lines."""
    known = [(name, cell) for name, cell in facts if cell is not None]
    width = max(len(name) for name, _ in known)
    if sys.stdout.isatty():
        indent = "\n" + " " * (width + 2)
        shown = [(name, indent.join(format_relative(line, now) for line in _lines(cell))) for name, cell in known]
    else:
        shown = [(name, format_exact(cell)) for name, cell in known]
    click.echo("\n".join(f"{name:<{width}}  {text}" for name, text in shown))


def _lines(cell: Cell) -> Sequence[Cell]:
    return cell.splitlines() or [cell] if type(cell) is str else [cell]


def format_exact(cell: Cell) -> str:
    """Return *cell* for programs: exact and on one line."""
    match cell:
        case None:
            return ""
        case datetime():
            return str(iso_time(cell))
        case timedelta():
            return f"{cell.total_seconds():g}"
        case _:
            return one_line(str(cell))


def format_relative(cell: Cell, now: datetime) -> str:
    """Return *cell* for people: relative times, short durations."""
    match cell:
        case None | "":
            return EMPTY_CELL
        case datetime():
            return relative(cell, now)
        case timedelta():
            return span(cell)
        case int():
            return f"{cell:,}"
        case _:
            return printable(str(cell))


def printable(text: str) -> str:
    """Return *text* without control characters, which could move the cursor or break a line; it may be untrusted."""
    return "".join(char if char.isprintable() else " " if char.isspace() else _UNPRINTABLE for char in text)


def printable_lines(text: str) -> str:
    """Return *text* with its line breaks, but without other control characters."""
    return "\n".join(map(printable, text.splitlines()))


def first_line(text: str) -> str:
    """Return the first line of *text*, shortened for a table cell."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _MAX_ERROR_CHARS else line[: _MAX_ERROR_CHARS - 1] + "…"


def aligned(titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, now: datetime) -> str:
    """Return *rows* as aligned columns, numbers to the right."""
    lines = [[title.upper() for title in titles], *([format_relative(cell, now) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numbers = [is_number(column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        ).rstrip()
        for line in lines
    )


def is_number(column: Sequence[Cell]) -> bool:
    return all(isinstance(cell, int | float) for cell in column)


def rich_table(titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, now: datetime) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _COLUMN_GAP - 1, 0, 0))
    for title, column in zip(titles, zip(*rows, strict=True), strict=True):
        # Ids and names are never wrapped, so that they can be copied.
        table.add_column(title, justify="right" if is_number(column) else "left", no_wrap=title not in _TEXT_TITLES)
    for row in rows:
        # Text instead of str: untrusted values must not be interpreted as markup.
        table.add_row(*(Text(format_relative(cell, now), style=_cell_color(cell)) for cell in row))
    return table


def _cell_color(cell: Cell) -> str:
    return _COLORS.get(cell, "") if isinstance(cell, Status) else ""


def print_rich(what: object) -> None:
    from rich.console import Console

    Console(no_color=Settings.from_env().no_color or None).print(what)


def has_rich() -> bool:
    from importlib.util import find_spec

    return find_spec("rich") is not None


class ProgressLine:
    """Progress of an operation: one updated line on a terminal, a new line every five seconds elsewhere."""

    def __init__(self, what: str, total: int | None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._what, self._total = what, total
        self._monotonic = monotonic
        self._is_live = sys.stderr.isatty()
        self._interval = _REDRAW_SECONDS if self._is_live else _LINE_SECONDS
        self._start = self._printed_at = monotonic()
        self._was_printed = False
        self.done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._was_printed and self._is_live:
            click.echo("\r\x1b[K", nl=False, err=True)

    def advance(self, count: int) -> None:
        """Add *count* finished items, and print the progress if it is due."""
        self.done += count
        now = self._monotonic()
        if now - self._printed_at >= self._interval:
            self._printed_at, self._was_printed = now, True
            click.echo(f"\r\x1b[K{self}" if self._is_live else str(self), nl=not self._is_live, err=True)

    def __str__(self) -> str:
        rate = self.done / max(self._monotonic() - self._start, 0.001)
        if self._total is None:
            return f"{self._what}: {self.done:,}, {rate:,.0f}/s"
        part = f"{self._what}: {self.done:,} of {self._total:,} ({self.done * 100 // max(self._total, 1)}%)"
        left = span(timedelta(seconds=(self._total - self.done) / rate)) if rate else "?"
        return f"{part}, {rate:,.0f}/s, {left} left"
