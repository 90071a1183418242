"""Rows of data: a table with relative times on a terminal, tab-separated lines with exact ones elsewhere."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from taskharbor.cli.output import echo_status
from taskharbor.cli.times import relative, span
from taskharbor.core.states import Status
from taskharbor.settings import Settings
from taskharbor.views import iso_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

Cell = str | int | float | datetime | timedelta | None

NOTHING: Final = "-"
_UNSEEN: Final = "\N{REPLACEMENT CHARACTER}"
_COLORS: Final = {
    Status.PROCESSING: "cyan",
    Status.FAILED: "yellow",
    Status.SUCCEEDED: "green",
    Status.DEAD: "red",
    Status.CANCELED: "magenta",
}


def print_table(titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, now: datetime, empty: str) -> None:
    """Print *rows* to stdout in the form that its reader can use best; where there are none, say *empty*."""
    if not rows:
        echo_status(empty)
        return
    if not sys.stdout.isatty():
        lines = [list(titles), *([format_exact(cell) for cell in row] for row in rows)]
        click.echo("\n".join("\t".join(line) for line in lines))
    elif has_rich():
        print_rich(rich_table(titles, rows, now=now))
    else:
        click.echo(aligned(titles, rows, now=now))


def print_facts(facts: Sequence[tuple[str, Cell]], *, now: datetime) -> None:
    """Print what is known of one thing, a line for each fact; what is not known is left out."""
    known = [(name, cell) for name, cell in facts if cell is not None]
    width = max(len(name) for name, _ in known)
    shown = (lambda cell: format_relative(cell, now)) if sys.stdout.isatty() else format_exact
    click.echo("\n".join(f"{name:<{width}}  {shown(cell)}" for name, cell in known))


def format_exact(cell: Cell) -> str:
    """Return *cell* for a program: exact, and on one line."""
    match cell:
        case None:
            return ""
        case datetime():
            return str(iso_time(cell))
        case timedelta():
            return f"{cell.total_seconds():g}"
        case _:
            return printable(str(cell))


def format_relative(cell: Cell, now: datetime) -> str:
    """Return *cell* for a person."""
    match cell:
        case None | "":
            return NOTHING
        case datetime():
            return relative(cell, now)
        case timedelta():
            return span(cell)
        case int():
            return f"{cell:,}"
        case _:
            return printable(str(cell))


def printable(text: str) -> str:
    """Return *text* without what could move the cursor, colour the screen or break a line: others wrote it."""
    return "".join(char if char.isprintable() else " " if char.isspace() else _UNSEEN for char in text)


def aligned(titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, now: datetime) -> str:
    """Return rows in columns, numbers to the right."""
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

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title, column in zip(titles, zip(*rows, strict=True), strict=True):
        # An id is copied: it is never cut or folded.
        table.add_column(title, justify="right" if is_number(column) else "left", no_wrap=title in {"id", "queue"})
    for row in rows:
        # Text, and not str: words of others must not be read as markup.
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
