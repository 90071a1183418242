"""Where a store is, and how one connects to it."""

from __future__ import annotations

import re
import select
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import conninfo

from taskharbor.core.errors import Problem, StoreUnavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg.abc import PQGen

RV = TypeVar("RV")

ENCODING: Final = "UTF8"
"""Of every connection: what the environment, the URL or the database say of it is ignored."""
SESSION_SETTINGS: Final = {
    # Statements are planned once, and by names of indexes rather than by guesses: a table that
    # was empty when its statistics were made must not be walked from end to end an hour later.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
    "jit": "off",
    "TimeZone": "UTC",
    "client_encoding": ENCODING,
}
"""What holds in every session of ours, and in no session of others."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """A database, a schema in it, and the way there.

    *password* is asked for each new connection, where the URL has none: tokens of cloud
    services end. *is_pooled* says that a pooler in transaction mode is in between, which
    keeps neither settings nor prepared statements from one transaction to the next.
    *is_timed* ends the wait for a reply some time after the deadline: a network may be
    silent, and a migration may take long.
    """

    url: str
    schema: str = "public"
    deadline: timedelta = timedelta(seconds=5)
    password: Callable[[], str] | None = None
    is_pooled: bool = False
    is_timed: bool = False

    def __post_init__(self) -> None:
        if not _SCHEMA.fullmatch(self.schema):
            rule = "a schema's name has 1 to 63 of a-z, 0-9 and _, and begins neither with a digit nor with pg_"
            raise UsageError(Problem(field="schema", value=self.schema, rule=rule))
        try:
            _check(self.url)
        except psycopg.ProgrammingError:
            rule = "write postgresql://user@host:5432/database, with %XX for what is special in a password"
            raise UsageError(
                Problem(field="url", value="one that cannot be read", rule=rule)
            ) from None  # libpq may quote a password

    @property
    def place(self) -> str:
        """What messages call this store: nothing secret."""
        parts = conninfo.conninfo_to_dict(self.url)
        host = parts.get("host") or parts.get("hostaddr") or "the local socket"
        return f"database {parts.get('dbname') or parts.get('user') or ''!r} on {host}"

    def connect(self, *, pinned: bool = True) -> ServerConnection:
        """Connect; every wait for the network ends by the deadline. Where it is *pinned*, `settings` hold."""
        has_settings = pinned and not self.is_pooled
        db = ServerConnection.connect(
            self._conninfo(self.settings if has_settings else {}),
            autocommit=True,
            prepare_threshold=0 if has_settings else None,
        )
        db.patience = REPLY_TIMEOUT_FACTOR * self.deadline.total_seconds() if self.is_timed else None
        if has_settings:
            db.meet()
        return db

    @property
    def settings(self) -> dict[str, str]:
        """What must hold for every statement of the driver."""
        milliseconds = round(self.deadline.total_seconds() * 1_000)
        return SESSION_SETTINGS | {
            "idle_in_transaction_session_timeout": str(2 * milliseconds),
            "lock_timeout": str(milliseconds // 2),  # shorter than the next, so that it is told which of both it was
            "statement_timeout": str(milliseconds),
        }

    def _conninfo(self, settings: Mapping[str, str]) -> str:
        given: dict[str, Any] = conninfo.conninfo_to_dict(self.url)
        if self.password is not None and not given.get("password"):
            given["password"] = self._ask_for_password(self.password)
        seconds = max(1, round(self.deadline.total_seconds()))
        ours: dict[str, Any] = {
            "application_name": "taskharbor",
            "connect_timeout": seconds,
            "keepalives_idle": seconds,
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "tcp_user_timeout": 1_000 * seconds,
        }
        if settings:
            options = [f"-c {name}={value}" for name, value in settings.items()]
            ours["options"] = " ".join([*options, given.pop("options", "")]).strip()
        return conninfo.make_conninfo("", **ours | given | {"client_encoding": ENCODING})

    def _ask_for_password(self, password: Callable[[], str]) -> str:
        """Call the user's function; while it fails, the store cannot be reached, and may be later."""
        try:
            return password()
        except Exception as error:
            # Its text may contain secrets; it stays in the cause.
            raise StoreUnavailable(f"{self.place}: password() raised {type(error).__name__}") from error  # noqa: TRY003


def _check(url: str) -> None:
    """Refuse what libpq cannot read, and what it would read so that a part of a password is shown as something else."""
    parts = conninfo.conninfo_to_dict(url)
    numbers = f"{parts.get('port', '')}{parts.get('connect_timeout', '')}"
    if not _NUMBERS.fullmatch(numbers) or ("://" in url and not _CLEAR.match(url)):
        raise psycopg.ProgrammingError


class ServerConnection(psycopg.Connection):
    """A connection that hangs up on a server which says nothing: it, or the way there, may be gone for good."""

    patience: float | None = None
    backend = 0
    generation = 0
    _kept: psycopg.Cursor | None = None
    _listen_thread: select.poll | None = None

    def meet(self) -> None:
        """Learn who is at the other end, and that it does as it was told.

        A pooler gives out numbers of its own, by which no backend can be ended, and may drop the settings
        without a word. Then it shares prepared statements too, and one would run those of somebody else.
        """
        row = self.execute("SELECT pg_backend_pid(), current_setting('plan_cache_mode')", prepare=False).fetchone()
        self.backend, mode = row or (0, None)
        if mode != SESSION_SETTINGS["plan_cache_mode"]:
            self.close()
            raise psycopg.OperationalError("its settings were dropped on the way")  # noqa: TRY003

    def ask(self, query: bytes, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows.

        A cursor that brought none is kept for the next one: if that is the same statement, psycopg
        knows already how to write its values down, which is a quarter of all its work for an insert.
        """
        cursor, self._kept = self._kept or self.cursor(), None
        cursor.execute(query, values, binary=True)
        if cursor.rownumber is not None:
            return cursor.fetchall()
        self._kept = cursor
        return []

    @property
    def is_alive(self) -> bool:
        """Whether the server has said nothing since: to an idle connection it only ever says goodbye."""
        if self.closed:
            return False
        if self._listen_thread is None:
            self._listen_thread = select.poll()
            self._listen_thread.register(self.fileno(), select.POLLIN)
        return not self._listen_thread.poll(0)

    def wait(self, gen: PQGen[RV], *how: Any, **named: Any) -> RV:
        return super().wait(gen if self.patience is None else self._timed(gen, self.patience), *how, **named)

    def _timed(self, gen: PQGen[RV], seconds: float) -> PQGen[RV]:
        """Go on with *gen* as psycopg does, which looks up from its wait now and then."""
        give_up_at = time.monotonic() + seconds
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > give_up_at:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no reply within {seconds:g} s")  # noqa: TRY003  as libpq words it
                wanted = gen.send(ready)
        except StopIteration as end:
            value: RV = end.value
            return value


_NUMBERS: Final = re.compile(r"[0-9,]*")
_CLEAR: Final = re.compile(r"[a-z]+://(?:[^@/]*@)?[^@/]*(?:/[^@?]*)?(?:\?|$)", re.IGNORECASE)
REPLY_TIMEOUT_FACTOR: Final = (
    1.25  # deadlines, after which the server's own word that it gave up is not waited for any more
)
_SCHEMA: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
