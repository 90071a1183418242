"""The connection pool, which runs all statements of the driver, and array literals for their parameters."""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import contextmanager
from random import uniform
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar

import psycopg
from psycopg.errors import DeadlockDetected, ReadOnlySqlTransaction, SerializationFailure
from psycopg.pq import TransactionStatus

from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.postgres.outage import Outage
from taskharbor.drivers.postgres.server import ReplyLost, is_full, is_unavailable, translate_error
from taskharbor.drivers.postgres.slots import ConnectionSlots

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.clocks import Clock
    from taskharbor.drivers.postgres.server import ServerAddress, ServerConnection

MAX_TEXT_ITEM_BYTES: Final = 8_192
"""If items are larger than this on average, binary parameters are faster than a text literal."""
T = TypeVar("T")
Row = tuple[Any, ...]
if TYPE_CHECKING:
    Step = tuple[LiteralString, dict[str, Any]]
    Steps = Generator[Step, list[Row], T]


def texts(values: Iterable[str | None]) -> str:
    return _array(["NULL" if value is None else _quoted(value) for value in values])


def integers(values: Iterable[int]) -> str:
    return _array([str(value) for value in values])


def timestamps(values: Iterable[datetime | None]) -> str:
    return _array(["NULL" if value is None else f'"{value}"' for value in values])


def intervals(values: Iterable[timedelta | None]) -> str:
    return _array(["NULL" if value is None else _interval(value) if value else "0" for value in values])


def blobs(values: Sequence[bytes]) -> str | list[bytes]:
    if sum(map(len, values)) > MAX_TEXT_ITEM_BYTES * len(values):
        return [*values]
    return _array([f'"\\\\x{value.hex()}"' for value in values])


def _array(items: list[str]) -> str:
    return f"{{{','.join(items)}}}"


def _quoted(text: str) -> str:
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _interval(value: timedelta) -> str:
    return f'"{value.days} days {value.seconds}.{value.microseconds:06} seconds"'


def run_statements(steps: Steps[T], fetch: Callable[..., list[Row]]) -> T:
    """Run every statement of *steps* with *fetch*, and return the value that *steps* returns."""
    rows: list[Row] | None = None
    while True:
        try:
            statement, parameters = _next(steps, rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        rows = fetch(statement, **parameters)


async def arun_statements(steps: Steps[T], fetch: Callable[..., Awaitable[list[Row]]]) -> T:
    """Do what `run_statements` does, for an async *fetch*."""
    rows: list[Row] | None = None
    while True:
        try:
            statement, parameters = _next(steps, rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        rows = await fetch(statement, **parameters)


def _next(steps: Steps[T], rows: list[Row] | None) -> Step:
    return next(steps) if rows is None else steps.send(rows)


class PostgresPool:
    """A pool of at most *size* connections. A call waits for one no longer than the deadline.

    The calling thread connects. If threads of the pool connected, callers would not learn why
    connecting fails, would wait for a backoff that another caller caused, and would find no
    threads after a fork.
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        clock: Clock | None,
        size: int,
        check: Callable[[], int],
        on_read_only: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self.clock = clock
        self._check = check
        self._on_read_only = on_read_only or self.renew
        self._generation = 0
        self._schema_version = 0
        self.statements = 0
        self._size = size
        calls = [f"set_config('{name}', '{value}', true)" for name, value in address.settings.items()]
        self._settings_query = f"SELECT {', '.join(calls)}".encode()
        self._qualified: dict[LiteralString, bytes] = {}  # bounded by the number of statements in the code
        self._inherited: list[ServerConnection] = []
        self._reset()

    def _reset(self) -> None:
        self._idle: list[ServerConnection] = []
        self._slots = ConnectionSlots(self._size)
        self._closed = threading.Event()
        self._outage = Outage(self._probe)
        self._was_connected = False
        self._pid = os.getpid()  # set last: a thread that finds it equal may use the rest

    @property
    def schema_version(self) -> int:
        """The schema version when this process first connected: the newest that this code knows, or the one before.

        Check it before running a statement that needs the newest version.
        """
        if not self._schema_version:
            self._schema_version = self._check()
        return self._schema_version

    def check_schema_again(self) -> None:
        """Let the next use of the schema version read it again."""
        self._schema_version = 0

    def fetch(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        """Run one statement in a transaction of its own, and return its rows."""
        query = self.qualified(statement)
        return self.run(lambda db: self.execute(db, query, parameters))

    def transact(self, steps: Callable[[], Steps[T]]) -> T:
        """Run all statements of *steps* in one transaction."""

        def work(db: ServerConnection) -> T:
            with db.transaction():
                return run_statements(
                    steps(), lambda statement, **values: self.execute(db, self.qualified(statement), values)
                )

        return self.run(work)

    def run(self, work: Callable[[ServerConnection], T]) -> T:
        """Call *work*, which is one transaction, with a connection.

        A serialization failure (40001) or a deadlock (40P01) rolls the transaction back. It is then
        repeated until the deadline.
        """
        give_up_at = self._deadline()
        while True:
            try:
                with self.connection() as db:
                    return work(db)
            except (SerializationFailure, DeadlockDetected) as conflict:
                if time.monotonic() > give_up_at:
                    reason = f"{self.address.place}: too many conflicts with other transactions ({conflict})"
                    raise StoreUnavailable(reason) from conflict

    def execute(self, db: ServerConnection, query: bytes, parameters: Mapping[str, Any]) -> list[Row]:
        self.statements += 1
        if not self.address.is_pooled:
            return db.fetch(query, self.with_now(parameters))
        with db.transaction():  # the settings last as long as it
            self.apply_settings(db)
            return db.fetch(query, self.with_now(parameters))

    def apply_settings(self, db: ServerConnection) -> None:
        """Apply the session settings to this transaction if there is a pooler, which does not keep them."""
        if self.address.is_pooled:
            db.execute(self._settings_query)

    def with_now(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return *parameters* with the time of a test's clock, or None to use the database's clock."""
        return {**parameters, "now": None if self.clock is None else self.clock.now()}

    def qualified(self, statement: LiteralString) -> bytes:
        """Return *statement* with the schema before each table name, so that the search path does not matter."""
        qualified = self._qualified.get(statement)
        if qualified is None:
            qualified = self._qualified[statement] = _TABLE.sub(rf'"{self.address.schema}".\g<0>', statement).encode()
        return qualified

    @contextmanager
    def connection(self) -> Iterator[ServerConnection]:
        db = self._acquire()
        try:
            yield db
        except (SerializationFailure, DeadlockDetected):
            raise
        except psycopg.Error as error:
            if db.broken:
                self._drop_idle()  # the cause probably broke the idle connections, too
            if isinstance(error, ReadOnlySqlTransaction):
                self._on_read_only()
            raise translate_error(error, self.address.place, backend=db.backend if db.broken else None) from error
        finally:
            self._release(db)

    def resolve(self, lost: ReplyLost) -> None:
        """Terminate the backend whose reply was lost: after that, its statement is committed or rolled back."""
        if self.address.is_pooled:
            raise lost  # only the pooler knows the backend
        seconds = self.address.deadline.total_seconds()
        ended = self.fetch(_TERMINATE, backend=lost.backend, milliseconds=round(seconds * 1_000 / 2))
        if ended == [(False,)]:
            raise lost

    def renew(self) -> None:
        """Replace all connections: their server is no longer the primary.

        Connections in use are closed when they are released.
        """
        self._abandon_inherited()
        self._generation += 1
        self._drop_idle()

    def close(self) -> None:
        """Close all idle connections; those in use are closed when they are released."""
        self._abandon_inherited()
        self._closed.set()
        self._outage.end()
        self._drop_idle()

    def _acquire(self) -> ServerConnection:
        self._abandon_inherited()
        self._check_open()
        if self._outage.is_on and not self._idle:
            self._outage.wait()  # before a slot is taken, or calls that wait for slots would fail one after another
        if not self._slots.acquire(timeout=self.address.deadline.total_seconds()):
            raise StoreUnavailable(f"{self.address.place}: {_NO_CONNECTION}")  # noqa: TRY003  it names the store
        try:
            return self._pop_alive() or self._open()
        except BaseException:
            self._slots.release()
            raise

    def _abandon_inherited(self) -> None:
        """Reset the pool after a fork: connections of the parent process must not be used or closed here."""
        if self._pid != os.getpid():
            self._inherited = self._idle  # kept, because psycopg warns about connections that are dropped unclosed
            self._reset()

    def _pop_idle(self) -> ServerConnection | None:
        try:
            return self._idle.pop()
        except IndexError:  # not checked before: another thread may pop the last one in between
            return None

    def _pop_alive(self) -> ServerConnection | None:
        while (db := self._pop_idle()) is not None:
            if db.is_alive and db.generation == self._generation:
                return db
            db.close()
        return None

    def _drop_idle(self) -> None:
        while (db := self._pop_idle()) is not None:
            db.close()

    def _release(self, db: ServerConnection) -> None:
        self._put_idle(db)
        self._slots.release()

    def _put_idle(self, db: ServerConnection) -> None:
        is_usable = not db.closed and db.pgconn.transaction_status == TransactionStatus.IDLE
        if is_usable and db.generation == self._generation and not self._closed.is_set():
            self._idle.append(db)
        else:
            db.close()

    def _open(self) -> ServerConnection:
        """Connect. Wait for a server that was connected before: in `Outage` if it is unavailable, here if full."""
        give_up_at = self._deadline()
        pause = 0.01
        while True:
            self._check_open()
            began_at = time.monotonic()
            try:
                return self._connect()
            except StoreUnavailable as failure:
                if is_unavailable(failure):
                    seconds = self.address.deadline.total_seconds() if self._was_connected else 0.0
                    self._outage.begin(failure, give_up_at=began_at + seconds)
                elif not is_full(failure):
                    raise
                if not self._was_connected or time.monotonic() + pause > give_up_at:
                    raise
            if self._outage.is_on:
                self._outage.wait()
            else:
                self._closed.wait(uniform(pause / 2, pause))  # noqa: S311  not for security: it spreads the waiting threads
                pause = min(2 * pause, 0.5)
            if (db := self._pop_alive()) is not None:
                return db

    def _connect(self) -> ServerConnection:
        if not self._was_connected:
            self._schema_version = self._check()
        generation = self._generation
        try:
            db = self.address.connect()
        except psycopg.Error as error:
            raise translate_error(error, self.address.place) from error
        db.generation = generation
        self._was_connected = True
        return db

    def _probe(self) -> StoreUnavailable | None:
        try:
            self._put_idle(self._connect())
        except StoreUnavailable as failure:
            return failure if is_unavailable(failure) else None
        except Exception:  # noqa: BLE001  the next call connects, and raises it
            return None
        return None

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreUnavailable(f"{self.address.place}: {_CLOSED}")  # noqa: TRY003  it names the store

    def _deadline(self) -> float:
        return time.monotonic() + self.address.deadline.total_seconds()


_TABLE: Final = re.compile(r"\bth_\w+\b")
_CLOSED: Final = "this driver was closed"
_NO_CONNECTION: Final = "all connections of this driver are in use; raise its size"
_TERMINATE: Final[LiteralString] = """
    SELECT pg_terminate_backend(pid, %(milliseconds)s)
      FROM pg_stat_activity
     WHERE pid = %(backend)s
       AND application_name = current_setting('application_name')
"""
