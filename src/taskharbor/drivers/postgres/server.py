"""The address of the server, connections to it, and the translation of its errors."""

from __future__ import annotations

import re
import select
import time
from asyncio import CancelledError
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import conninfo

from taskharbor.core.errors import Problem, StoreRefused, StoreUnavailable, UsageError
from taskharbor.drivers.postgres.rows import ByteaArray, ByteaArrayDumper, UuidArray, UuidArrayDumper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg.abc import PQGen

RV = TypeVar("RV")

ENCODING: Final = "UTF8"
"""The client encoding of every connection; the environment, the URL and the database cannot change it."""
MAX_CURSORS: Final = 8
"""How many cursors a connection keeps: few statements are run often."""
MAX_KEPT_CHARS: Final = 8_192
MAX_KEPT_ITEMS: Final = 16
SESSION_SETTINGS: Final = {
    # Statements are planned once, and must use indexes regardless of statistics: a table that was
    # empty when it was analyzed must not be scanned sequentially when it is full an hour later.
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
"""Settings of every session of the driver. They do not affect other sessions."""


class ReplyLost(StoreUnavailable):
    """The connection broke during a statement, and it is unknown whether that was committed."""

    def __init__(self, reason: str, backend: int) -> None:
        super().__init__(reason)
        self.args = (reason, backend)
        self.backend = backend


_POOLER: Final = (
    "there seems to be a pooler in transaction mode; add ?pooler=transaction to the URL, or connect directly"
)
# libpq has no SQLSTATE for these two.
_NO_HOST: Final = "no host"
_NO_REPLY: Final = "no reply"
_HINTS: Final = {
    "08001": "connection refused; check host and port",
    _NO_HOST: "host not found; check its name",
    _NO_REPLY: "no reply; check host, port and firewall",
    "08P01": _POOLER,
    "25006": "the server is read-only; connect to the primary",
    "26000": _POOLER,
    "28000": "this user does not exist or may not connect; check its name and pg_hba.conf",
    "28P01": "wrong user or password; in a URL, write special characters as %XX",
    "3D000": "this database does not exist; create it, or correct its name",
    "3F000": "this schema does not exist; run 'taskharbor migrate up'",
    "42501": "this user lacks a privilege; grant it, or connect as the owner of the tables",
    "42P01": "a table is missing; run 'taskharbor migrate up'",
    "42P05": _POOLER,
    "53100": "the disk of the server is full; the statement stored nothing",
    "53200": "the server is out of memory",
    "53300": "all connections that are allowed are in use; close some, raise max_connections, or the CONNECTION LIMIT "
    "of this user or database, or lower the drivers' size",
    "55P03": "another transaction held a lock for too long; the statement stored nothing",
    "57014": "the statement took longer than the deadline; it stored nothing",
    "57P01": "the server is shutting down",
    "57P02": "the server is shutting down after a crash",
    "57P03": "the server does not accept connections yet",
    "57P05": "the server closed an idle connection",
}
_REFUSED: Final = {"08P01", "28000", "28P01", "3D000", "42501"}
_UNAVAILABLE: Final = {"08001", _NO_HOST, _NO_REPLY, "25006", "57P01", "57P02", "57P03", None}
_FULL: Final = "53300"
# Errors of the server or its machine, not of the statement: the same call may succeed later.
_SERVER_CLASSES: Final = {"08", "40", "53", "55", "57", "58", "F0", "XX"}
# For a refused connection libpq gives only a message, no SQLSTATE. Messages in other languages are not recognized.
_CODES_OF_MESSAGES: Final = {
    "unsupported startup parameter|session settings were dropped": "08P01",
    "password authentication failed|no password supplied": "28P01",
    'no pg_hba.conf entry|role ".*" does not exist': "28000",
    'database ".*" does not exist': "3D000",
    "too many (clients|connections)|connection slots are reserved": "53300",
    "the database system is": "57P03",
    "Connection refused": "08001",
    "failed to resolve host": _NO_HOST,
    "timeout expired": _NO_REPLY,
    "session is read-only|server is in hot standby mode": "25006",
}


def translate_error(error: psycopg.Error, place: str, *, backend: int | None = None) -> Exception:
    """Return a `StoreUnavailable` if the server is the cause; return errors of the SQL or the data unchanged."""
    first_line = str(error).strip().split("\n", 1)[0]
    code = _code(error)
    hint = _HINTS.get(code or "")
    reason = f"{place}: {hint} ({first_line})" if hint else f"{place}: {first_line}"
    if backend is not None:
        return ReplyLost(reason, backend)
    if hint or _is_server_error(error):
        return StoreRefused(reason) if code in _REFUSED else StoreUnavailable(reason)
    return error


def _is_server_error(error: psycopg.Error) -> bool:
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate[:2] in _SERVER_CLASSES


def is_unavailable(failure: StoreUnavailable) -> bool:
    """Return whether connecting failed because no writable server is reachable, which may change."""
    cause = failure.__cause__
    return not isinstance(cause, psycopg.Error) or (
        isinstance(cause, psycopg.OperationalError) and _code(cause) in _UNAVAILABLE
    )


def is_full(failure: StoreUnavailable) -> bool:
    """Return whether connecting failed because all connections that are allowed are in use."""
    return isinstance(failure.__cause__, psycopg.OperationalError) and _code(failure.__cause__) == _FULL


def _code(error: psycopg.Error) -> str | None:
    return error.sqlstate or next(
        (code for words, code in _CODES_OF_MESSAGES.items() if re.search(words, str(error))), None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """A database, a schema in it, and how to connect to them.

    If the URL has no password, *password* is called for each new connection, because tokens of
    cloud services expire. With *is_pooled*, connections go through a pooler in transaction mode,
    which keeps neither settings nor prepared statements between transactions. With *is_timed*,
    the wait for a reply ends some time after the deadline, in case the network drops packets or the
    server is suspended. Migrations have no such limit.
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
            _check_url(self.url)
        except psycopg.ProgrammingError:
            rule = "write postgresql://user@host:5432/database, with special characters of a password as %XX"
            raise UsageError(
                Problem(field="url", value="one that cannot be read", rule=rule)
            ) from None  # libpq may quote a password

    @property
    def place(self) -> str:
        """The description of the store in messages, without secrets."""
        parts = conninfo.conninfo_to_dict(self.url)
        host = parts.get("host") or parts.get("hostaddr") or "the local socket"
        return f"database {parts.get('dbname') or parts.get('user') or ''!r} on {host}"

    @property
    def host_and_port(self) -> tuple[str, int] | None:
        """The first server of the URL; None if that is a local socket."""
        parts = conninfo.conninfo_to_dict(self.url)
        host, port = (str(parts.get(name) or "").split(",")[0] for name in ("host", "port"))
        return (host, int(port or 5432)) if host and not host.startswith(("/", "@")) else None

    def connect(self, *, with_settings: bool = True) -> ServerConnection:
        """Connect before the deadline; apply `settings` if *with_settings* is true."""
        has_settings = with_settings and not self.is_pooled
        db = ServerConnection.connect(
            self._conninfo(self.settings if has_settings else {}),
            autocommit=True,
            prepare_threshold=0 if has_settings else None,
        )
        db.adapters.register_dumper(UuidArray, UuidArrayDumper)
        db.adapters.register_dumper(ByteaArray, ByteaArrayDumper)
        db.reply_timeout_seconds = REPLY_TIMEOUT_FACTOR * self.deadline.total_seconds() if self.is_timed else None
        if has_settings:
            db.check_session()
        return db

    @property
    def settings(self) -> dict[str, str]:
        """The session settings of every statement of the driver."""
        milliseconds = round(self.deadline.total_seconds() * 1_000)
        return SESSION_SETTINGS | {
            "idle_in_transaction_session_timeout": str(2 * milliseconds),
            # Shorter than statement_timeout, so that the error shows which one it was.
            "lock_timeout": str(milliseconds // 2),
            "statement_timeout": str(milliseconds),
        }

    def _conninfo(self, settings: Mapping[str, str]) -> str:
        given: dict[str, Any] = conninfo.conninfo_to_dict(self.url)
        if self.password is not None and not given.get("password"):
            given["password"] = self._call_password(self.password)
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

    def _call_password(self, password: Callable[[], str]) -> str:
        """Call the user's function. If it fails, raise `StoreUnavailable`: it may succeed later.

        A text that cannot be sent is a failure, too. While an outcome is recorded, a `UnicodeError` blames the outcome.
        So are `SystemExit`, and `CancelledError` of an event loop that the function runs: in a thread of the driver or
        a worker, they would end that thread without a word.
        """
        try:
            text = password()
            str(text).encode()
        except (Exception, SystemExit, CancelledError) as error:
            # The message may contain secrets; it stays in the cause.
            raise StoreUnavailable(f"{self.place}: password() raised {type(error).__name__}") from error  # noqa: TRY003
        return text


def _check_url(url: str) -> None:
    """Raise if libpq cannot parse *url*, or would take part of a password for a host or port that messages show."""
    parts = conninfo.conninfo_to_dict(url)
    numbers = f"{parts.get('port', '')}{parts.get('connect_timeout', '')}"
    if not _NUMBERS.fullmatch(numbers) or ("://" in url and not _UNAMBIGUOUS_URL.match(url)):
        raise psycopg.ProgrammingError


class ServerConnection(psycopg.Connection):
    """A connection that closes itself if the server does not reply in time: the server or the network may be gone."""

    reply_timeout_seconds: float | None = None
    backend = 0
    generation = 0
    _poller: select.poll | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._cursors: dict[bytes, psycopg.Cursor] = {}  # by statement, the one used last at the end

    def check_session(self) -> None:
        """Read the process id of the backend, and check that the session settings were applied.

        A pooler reports process ids of its own, which cannot be used to terminate a backend. It may drop the
        settings without an error. Then it also shares prepared statements between its clients, and a session
        could run those of another client.
        """
        row = self.execute("SELECT pg_backend_pid(), current_setting('plan_cache_mode')", prepare=False).fetchone()
        self.backend, mode = row or (0, None)
        if mode != SESSION_SETTINGS["plan_cache_mode"]:
            self.close()
            raise psycopg.OperationalError("the session settings were dropped")  # noqa: TRY003

    def fetch(self, query: bytes, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows.

        Its cursor is kept for the next time. psycopg has then already chosen how to adapt the parameters, which is a
        quarter of its work for an insert. And the cursor of a claim leaves 70 objects in reference cycles: with those
        of a worker at 50 jobs per second, the garbage collector made one job in 74 wait for 4 ms.
        """
        cursor = self._cursors.pop(query, None) or self.cursor()
        cursor.execute(query, values, binary=True)
        rows = []
        if cursor.rownumber is not None and cursor.pgresult is not None:
            rows = cursor.fetchall()
            cursor.pgresult.clear()
        if not any(map(_is_large, values.values())):
            self._cursors[query] = cursor
            if len(self._cursors) > MAX_CURSORS:
                del self._cursors[next(iter(self._cursors))]
        return rows

    @property
    def is_alive(self) -> bool:
        """Whether the server has not closed the connection; it sends nothing else to an idle one."""
        if self.closed:
            return False
        if self._poller is None:
            self._poller = select.poll()
            self._poller.register(self.fileno(), select.POLLIN)
        return not self._poller.poll(0)

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        seconds = self.reply_timeout_seconds
        return super().wait(gen if seconds is None else self._timed(gen, seconds), *args, **kwargs)

    def _timed(self, gen: PQGen[RV], seconds: float) -> PQGen[RV]:
        """Run *gen*, and raise after *seconds*. psycopg resumes it regularly, even if nothing is ready."""
        give_up_at = time.monotonic() + seconds
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > give_up_at:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no reply within {seconds:g} s")  # noqa: TRY003  worded like errors of libpq
                wanted = gen.send(ready)
        except StopIteration as end:
            value: RV = end.value
            return value


def _is_large(value: object) -> bool:
    """Return whether *value* may take much memory: a cursor keeps the parameters of its statement."""
    if isinstance(value, list):
        return len(value) > MAX_KEPT_ITEMS or any(map(_is_large, value))
    return isinstance(value, str | bytes) and len(value) > MAX_KEPT_CHARS


_NUMBERS: Final = re.compile(r"[0-9,]*")
_UNAMBIGUOUS_URL: Final = re.compile(r"[a-z]+://(?:[^@/]*@)?[^@/]*(?:/[^@?]*)?(?:\?|$)", re.IGNORECASE)
REPLY_TIMEOUT_FACTOR: Final = 1.25
"""The client waits for a reply for this many deadlines, so that the server's own timeout error can arrive."""
_SCHEMA: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
