"""What the errors of PostgreSQL mean to our callers."""

from __future__ import annotations

import re
from typing import Final

import psycopg

from taskharbor.core.errors import StoreUnavailable


class ReplyLost(StoreUnavailable):
    """The connection broke while a statement was under way: nobody knows yet whether it was committed."""

    def __init__(self, reason: str, backend: int) -> None:
        super().__init__(reason)
        self.args = (reason, backend)
        self.backend = backend


_POOLER: Final = "a pooler in transaction mode seems to be in between; say so with ?pooler=transaction, or go around it"
_HINTS: Final = {
    "08001": "nobody answers there; see that the server runs, and that host and port are its own",
    "08P01": _POOLER,
    "25006": "it is read-only here; connect to the primary",
    "26000": _POOLER,
    "28000": "this user may not connect; see pg_hba.conf",
    "28P01": "it refuses this user or password; correct them, and mind %XX for what is special in a URL",
    "3D000": "this database does not exist; create it, or correct its name",
    "3F000": "this schema does not exist; run 'taskharbor migrate up'",
    "42501": "this user lacks a right; grant it, or connect as the owner of the tables",
    "42P01": "a table is missing; run 'taskharbor migrate up'",
    "42P05": _POOLER,
    "53100": "its disk is full; nothing of this statement was stored",
    "53200": "it is out of memory",
    "53300": "all its connections are taken; close some, raise max_connections, or give drivers fewer (size)",
    "55P03": "another transaction has held a lock for too long; nothing of this statement was stored",
    "57014": "the statement took longer than the deadline; nothing of it was stored",
    "57P01": "it is shutting down",
    "57P02": "it is shutting down after a crash",
    "57P03": "it does not accept connections yet",
    "57P05": "it closed a connection that was idle",
}
_AWAY: Final = {"08001", "25006", "57P01", "57P02", "57P03", None}
_FULL: Final = "53300"
# Trouble of the server or of its machine, not of the statement: the same call may succeed later.
_SERVER_CLASSES: Final = {"08", "40", "53", "55", "57", "58", "F0", "XX"}
# Of a connection that was refused libpq tells the words only. In another language they are shown as they are.
_WORDS: Final = {
    "unsupported startup parameter|dropped on the way": "08P01",
    "password authentication failed|no password supplied": "28P01",
    'no pg_hba.conf entry|role ".*" does not exist': "28000",
    'database ".*" does not exist': "3D000",
    "too many (clients|connections)|connection slots are reserved": "53300",
    "the database system is": "57P03",
    "Connection refused|failed to resolve host|timeout expired": "08001",
    "session is read-only|server is in hot standby mode": "25006",
}


def translate_error(error: psycopg.Error, place: str, *, backend: int | None = None) -> Exception:
    """Turn what means that the store is away into that; a mistake in our own SQL stays what it is."""
    first_line = str(error).strip().split("\n", 1)[0]
    hint = _HINTS.get(_code(error) or "")
    why = f"{place}: {hint} ({first_line})" if hint else f"{place}: {first_line}"
    if backend is not None:
        return ReplyLost(why, backend)
    if hint or _is_of_server(error):
        return StoreUnavailable(why)
    return error


def _is_of_server(error: psycopg.Error) -> bool:
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate[:2] in _SERVER_CLASSES


def is_away(failure: StoreUnavailable) -> bool:
    """Return whether connecting failed because no server answers, or none that can write: it may answer later."""
    cause = failure.__cause__
    return not isinstance(cause, psycopg.Error) or (
        isinstance(cause, psycopg.OperationalError) and _code(cause) in _AWAY
    )


def is_full(failure: StoreUnavailable) -> bool:
    """Return whether connecting failed because the server has no free connection: one may be closed soon."""
    return isinstance(failure.__cause__, psycopg.OperationalError) and _code(failure.__cause__) == _FULL


def _code(error: psycopg.Error) -> str | None:
    return error.sqlstate or next((code for words, code in _WORDS.items() if re.search(words, str(error))), None)
