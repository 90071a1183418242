"""What a check found, and how checks are run."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import StoreRefused, StoreUnavailable, TaskHarborError
from taskharbor.delivery.transport import TransportUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


class Level(StrEnum):
    """How bad it is: OK, a risk (WARN), or something that does not work now (FAIL)."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: its name, a sentence about what was found, and what to do about it."""

    check: str
    level: Level
    text: str
    remedy: str = ""

    def view(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"check": self.check, "level": self.level.value, "text": self.text, "remedy": self.remedy}


Problem = tuple[Level, str, str]
"""A level, what was found, and the remedy."""


class NotChecked(Exception):
    """A check cannot be made, for a reason that another check reports."""


def run_check(
    name: str, fine: str, check: Callable[[], Iterable[Problem]], *, if_unavailable: str = ""
) -> Iterator[Finding]:
    """Yield a finding for each problem that *check* returns, or one that says that all is *fine*.

    Yield nothing if it raises `NotChecked`: nothing is known then. *if_unavailable* is what to do if the store, which
    other checks have reached, does not answer this one.
    """
    try:
        problems = list(check())
    except NotChecked:
        return
    except Exception as error:  # noqa: BLE001  reported as a finding; the other checks are run
        problem = not_checked(error)
        is_away = isinstance(error, StoreUnavailable) and not isinstance(error, StoreRefused)
        problems = [(*problem[:2], if_unavailable)] if is_away and if_unavailable else [problem]
    if not problems:
        yield Finding(name, Level.OK, fine)
    for level, text, remedy in problems:
        yield Finding(name, level, text, remedy)


def not_checked(error: Exception) -> Problem:
    """Return that a check failed with *error*, and what to do about that."""
    remedy = getattr(error, "remedy", "") or next(text for kind, text in _REMEDIES if isinstance(error, kind))
    if getattr(error, "sqlstate", None) in _CHANGED:
        remedy = _CHANGED_REMEDY
    if _is_full(error):
        remedy = _FULL_REMEDY
    if (code := _sqlite_code(error)) in _SQLITE_REMEDIES:
        remedy = _SQLITE_REMEDIES[code]
    if isinstance(error, StoreUnavailable) and getattr(error.__cause__, "sqlstate", None) in _SLOW:
        remedy = _SLOW_REMEDY
    text = str(error).removesuffix(f": {remedy}").removesuffix(f"; {remedy}")  # the next line says it
    known = isinstance(error, TaskHarborError)
    return Level.FAIL, f"it could not be checked: {text if known else f'{type(error).__name__}: {text}'}", remedy


def _is_full(error: Exception) -> bool:
    if not type(error.__cause__).__module__.startswith("psycopg"):
        return False
    from taskharbor.drivers.postgres.server import is_full  # noqa: PLC0415  psycopg is an extra

    return isinstance(error, StoreUnavailable) and is_full(error)


def _sqlite_code(error: Exception) -> int:
    """Return the code of SQLite for *error* or its cause, without its extension; 0 if it is none of SQLite."""
    found = next((each for each in (error, error.__cause__) if isinstance(each, sqlite3.Error)), None)
    return getattr(found, "sqlite_errorcode", 0) & 0xFF


_SLOW: Final = frozenset({"55P03", "57014"})
"""The codes of PostgreSQL for a lock that was not released in time, and for a statement that took too long."""
_SLOW_REMEDY: Final = (
    "remove the cause, which may be among the findings ('locks', 'indexes', 'dead rows'); then run this again"
)
_CHANGED: Final = frozenset({"42703", "42804", "42883", "42P01"})
"""The codes of PostgreSQL for a column, a function or a table that does not exist, and for a column of another type."""
_CHANGED_REMEDY: Final = (
    "the tables are not as the migrations have made them: undo what was changed by hand, or restore them from a backup"
)
_FULL_REMEDY: Final = (
    "close connections, or raise max_connections or the limit of this user; a superuser, for whom some are reserved, "
    "sees them all in pg_stat_activity; then run this again"
)
_BROKEN_DISK: Final = "see that the disk works, and that it is not full (the check 'free space'); then run this again"
_NO_ACCESS: Final = "see that this user may use the file and its folder; then run this again"
_DAMAGED: Final = "the file is damaged, or is none of SQLite: restore it from a backup"
_LOCKED: Final = "close the program that has locked the file, or end its transaction; then run this again"
_SQLITE_REMEDIES: Final[Mapping[int, str]] = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_IOERR: _BROKEN_DISK,
    sqlite3.SQLITE_FULL: _BROKEN_DISK,
    sqlite3.SQLITE_CANTOPEN: _NO_ACCESS,
    sqlite3.SQLITE_READONLY: _NO_ACCESS,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}
_REMEDIES: Final[Sequence[tuple[type[Exception], str]]] = (
    (StoreRefused, "correct the URL, or what the server allows its user; then run this again"),
    (StoreUnavailable, "start the server, or correct the URL; look at the network in between; then run this again"),
    (TransportUnavailable, "see that this machine reaches the endpoint of SQS (AWS_ENDPOINT_URL); then run this again"),
    (TaskHarborError, "correct what it names; then run this again"),
    (sqlite3.OperationalError, "close the program that has locked the file, and see that this user may use it"),
    (sqlite3.DatabaseError, _DAMAGED),
    (OSError, "see that this user may use what is named; then run this again"),
    (Exception, "this is not expected: please report it with this text; the other checks are complete"),
)
"""What to do about errors, the first class that fits."""
