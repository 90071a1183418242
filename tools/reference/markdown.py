"""Write tables of Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, or an empty text if there are no rows."""
    lines = [f"| {' | '.join(cell(each) for each in row)} |\n" for row in rows]
    head = f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n"
    return head + "".join(lines) + "\n" if lines else ""


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`"


def first_sentence(docstring: str | None) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return " ".join((docstring or "").strip().split("\n\n")[0].split())
