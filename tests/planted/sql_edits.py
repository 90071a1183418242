"""Edits that omit each condition, lock clause and conflict clause in the SQL of a store once.

Statements are strings in the driver's source, or migrations, with one clause per line. Omitting
one ``AND`` is the smallest bug that SQL can have, and the easiest to overlook.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Final

from tests.planted.definitions import definitions_in

if TYPE_CHECKING:
    from collections.abc import Iterator

DRIVERS: Final = Path(__file__).resolve().parents[2] / "src" / "taskharbor" / "drivers"
MAX_NAME_CHARS: Final = 100
STORES: Final = ("postgres", "sqlite")
SHARED: Final = "audit_rules.py"
"""The SQL of both stores: that of the audit, which no case of the kit reads."""


@dataclass(frozen=True, slots=True)
class SqlEdit:
    """One piece of SQL to omit: its file below `DRIVERS`, and its start and end."""

    file: str
    start: int
    end: int
    place: str
    """The constant or function that contains it, or the name of the migration."""
    text: str
    """The beginning of the omitted text, numbered if it occurs more than once in its place."""

    @property
    def name(self) -> str:
        return f"{self.store} {self.place}: {self.text}"

    @property
    def store(self) -> str:
        return "both" if self.file == SHARED else self.file.partition("/")[0]

    @property
    def is_migration(self) -> bool:
        return self.file.endswith(".sql")

    @property
    def module(self) -> str:
        return f"taskharbor.drivers.{self.file.removesuffix('.py').replace('/', '.')}"

    def planted_in(self, source: str) -> str:
        return source[: self.start] + source[self.end :]


def all_edits() -> list[SqlEdit]:
    files = [DRIVERS / SHARED, *(file for store in STORES for file in _files(store))]
    return [edit for file in files for edit in edits_of(file)]


def _files(store: str) -> list[Path]:
    return sorted([*(DRIVERS / store).glob("*.py"), *(DRIVERS / store / "migrations").glob("*.sql")])


def edits_of(file: Path) -> Iterator[SqlEdit]:
    source, is_sql = file.read_text("utf-8"), file.suffix == ".sql"
    places = [] if is_sql else [*definitions_in(file)]
    seen: Counter[tuple[str, str]] = Counter()
    for start, end in sorted(_spans(_without_comments(source, is_sql=is_sql))):
        around = [each for each in places if each.start <= start and end <= each.end]
        place = file.stem if is_sql else min(around, key=lambda each: len(each.text)).name
        text = shorten(source[start:end], MAX_NAME_CHARS, placeholder=" …")
        seen[place, text] += 1
        numbered = text if seen[place, text] == 1 else f"{text} #{seen[place, text]}"
        yield SqlEdit(file.relative_to(DRIVERS).as_posix(), start, end, place, numbered)


def _spans(source: str) -> Iterator[tuple[int, int]]:
    for found in _CONDITION.finditer(source):
        end = _end_of(source, found.end(), _CONDITION_END)
        if end is not None and not _BETWEEN.search(source, 0, found.start()):
            yield found.start(), end
    for found in _LOCK.finditer(source):
        yield found.span()
    for found in _SKIP.finditer(source):
        yield found.span()
    for found in _CONFLICT.finditer(source):
        end = _end_of(source, found.end(), _CONFLICT_END)
        if end is not None:
            yield found.start(), end


def _end_of(source: str, start: int, stop: re.Pattern[str]) -> int | None:
    """Return the end of the clause that began before *start*: the next keyword of its level, or the end of its level.

    Return None if it ends in another string than it began in. Its parts are omitted there.
    """
    depth = 0
    for found in stop.finditer(source, start):
        if found[0] in _OPENING:
            depth += 1
        elif found[0] in _CLOSING:
            if depth == 0:
                return _trimmed(source, start, found.start())
            depth -= 1
        elif found[0] == '"' and depth:
            return None
        elif depth == 0:
            return _trimmed(source, start, found.start())
    return _trimmed(source, start, len(source))


def _trimmed(source: str, start: int, end: int) -> int:
    return start + len(source[start:end].rstrip())


def _without_comments(source: str, *, is_sql: bool) -> str:
    """Replace comments by blanks, so that all positions stay the same."""
    blanked = _SQL_COMMENT.sub(_blank, source)
    return blanked if is_sql else _PYTHON_COMMENT.sub(_blank, blanked)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


_SQL_COMMENT: Final = re.compile(r"--[^\n]*")
_PYTHON_COMMENT: Final = re.compile(r"(?m)^\s*#[^\n]*|  # [^\n]*")
_CONDITION: Final = re.compile(r"\bAND\b")
_BETWEEN: Final = re.compile(r"\bBETWEEN\s+[^\s]+\s+\Z")
_LOCK: Final = re.compile(r"\bFOR UPDATE\b(?: OF \w+)?(?: SKIP LOCKED| NOWAIT)?")
_SKIP: Final = re.compile(r"\bSKIP LOCKED\b")
_CONFLICT: Final = re.compile(r"\bON CONFLICT\b|\bOR IGNORE\b|\bOR REPLACE\b(?! FUNCTION)")
_OPENING: Final = frozenset("({")
_CLOSING: Final = frozenset(")}")
_CONDITION_END: Final = re.compile(
    r'\n\s*(?=\{)|[(){}]|"|;|,|\b(?:AND|OR|ORDER BY|GROUP BY|LIMIT|OFFSET|FOR UPDATE|RETURNING|ON CONFLICT'
    r"|UNION|WHEN|THEN|ELSE|END|(?<!DISTINCT )FROM|WHERE|JOIN|CROSS|SET|AS|LOOP|BEGIN|EXECUTE|VALUES)\b"
)
_CONFLICT_END: Final = re.compile(r'[(){}]|"|;|\bRETURNING\b|\bINTO\b')
