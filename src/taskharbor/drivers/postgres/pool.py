"""Connections to the server, and the one way to run a statement."""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from random import uniform
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar

import psycopg
from psycopg.errors import DeadlockDetected, ReadOnlySqlTransaction, SerializationFailure
from psycopg.pq import TransactionStatus

from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.postgres.outage import Outage
from taskharbor.drivers.postgres.server import ReplyLost, is_away, is_full, translate_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.clocks import Clock
    from taskharbor.drivers.postgres.server import ServerAddress, ServerConnection

LARGE: Final = 8_192
"""Bytes of an item, on average, from which on it is better sent as it is than written down."""
T = TypeVar("T")
Row = tuple[Any, ...]
if TYPE_CHECKING:
    Step = tuple[LiteralString, dict[str, Any]]
    Steps = Generator[Step, list[Row], T]


def texts(values: Iterable[str | None]) -> str:
    return _array(["NULL" if value is None else _quoted(value) for value in values])


def integers(values: Iterable[int]) -> str:
    return _array([str(value) for value in values])


def moments(values: Iterable[datetime | None]) -> str:
    return _array(["NULL" if value is None else f'"{value}"' for value in values])


def spans(values: Iterable[timedelta | None]) -> str:
    return _array(["NULL" if value is None else _span(value) if value else "0" for value in values])


def blobs(values: Sequence[bytes]) -> str | list[bytes]:
    if sum(map(len, values)) > LARGE * len(values):
        return [*values]
    return _array([f'"\\\\x{value.hex()}"' for value in values])


def _array(items: list[str]) -> str:
    return f"{{{','.join(items)}}}"


def _quoted(text: str) -> str:
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _span(value: timedelta) -> str:
    return f'"{value.days} days {value.seconds}.{value.microseconds:06} seconds"'


def run_statements(steps: Steps[T], fetch: Callable[..., list[Row]]) -> T:
    """Run every statement by *fetch*, and return what *steps* return."""
    rows: list[Row] | None = None
    while True:
        try:
            statement, asked = _next(steps, rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        rows = fetch(statement, **asked)


async def arun_statements(steps: Steps[T], fetch: Callable[..., Awaitable[list[Row]]]) -> T:
    """Do as `run_statements` does, and await each statement."""
    rows: list[Row] | None = None
    while True:
        try:
            statement, asked = _next(steps, rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        rows = await fetch(statement, **asked)


def _next(steps: Steps[T], rows: list[Row] | None) -> Step:
    return next(steps) if rows is None else steps.send(rows)


class PostgresPool:
    """Gives each statement a connection, at most *size* at a time; none is waited for longer than the deadline.

    A pool with threads of its own would connect behind the caller's back: the caller would
    then not learn why it cannot, would wait out somebody else's pause after the server is
    back, and would find no threads after a fork.
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
        pins = [f"set_config('{name}', '{value}', true)" for name, value in address.settings.items()]
        self._pin = f"SELECT {', '.join(pins)}".encode()
        self._named: dict[LiteralString, bytes] = {}  # as many as there are statements in the code
        self._inherited: list[ServerConnection] = []
        self._reset()

    def _reset(self) -> None:
        self._idle: list[ServerConnection] = []
        self._slots: SimpleQueue[None] = SimpleQueue()  # a semaphore, written in C
        for _ in range(self._size):
            self._slots.put(None)
        self._closed = threading.Event()
        self._outage = Outage(self._probe)
        self._was_connected = False
        self._pid = os.getpid()  # last: who finds it right may use the rest

    @property
    def schema_version(self) -> int:
        """The migration that the database had when this process first connected: this code's newest, or the one before.

        A statement that uses what the newest one brought asks first.
        """
        if not self._schema_version:
            self._schema_version = self._check()
        return self._schema_version

    def fetch(self, statement: LiteralString, **asked: Any) -> list[Row]:
        """Run one statement, which is one transaction, and return its rows."""
        query = self.named(statement)
        return self.run(lambda db: self.execute(db, query, asked))

    def transact(self, verb: Callable[[], Steps[T]]) -> T:
        """Run all statements of *verb* in one transaction."""

        def work(db: ServerConnection) -> T:
            with db.transaction():
                return run_statements(verb(), lambda statement, **asked: self.execute(db, self.named(statement), asked))

        return self.run(work)

    def run(self, work: Callable[[ServerConnection], T]) -> T:
        """Do *work*, one transaction, with a connection.

        Where another transaction moved a row first (40001), or both waited for each other
        (40P01), nothing was done, and it is done again.
        """
        give_up_at = self._deadline()
        while True:
            try:
                with self.connection() as db:
                    return work(db)
            except (SerializationFailure, DeadlockDetected) as conflict:
                if time.monotonic() > give_up_at:
                    why = f"{self.address.place}: others kept moving the same jobs ({conflict})"
                    raise StoreUnavailable(why) from conflict

    def execute(self, db: ServerConnection, query: bytes, asked: Mapping[str, Any]) -> list[Row]:
        self.statements += 1
        if not self.address.is_pooled:
            return db.ask(query, self.timed(asked))
        with db.transaction():  # its settings end with it
            self.pin(db)
            return db.ask(query, self.timed(asked))

    def pin(self, db: ServerConnection) -> None:
        """Set the session's settings for this transaction if a pooler is in between, which keeps none."""
        if self.address.is_pooled:
            db.execute(self._pin)

    def timed(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return *asked* with the time that a test's clock tells; the store asks its own, if there is none."""
        return {**asked, "now": None if self.clock is None else self.clock.now()}

    def named(self, statement: LiteralString) -> bytes:
        """Return *statement* with the schema in front of every table: the search path is nobody's business."""
        named = self._named.get(statement)
        if named is None:
            named = self._named[statement] = _TABLE.sub(rf'"{self.address.schema}".\g<0>', statement).encode()
        return named

    @contextmanager
    def connection(self) -> Iterator[ServerConnection]:
        db = self._take()
        try:
            yield db
        except (SerializationFailure, DeadlockDetected):
            raise
        except psycopg.Error as error:
            if db.broken:
                self._drop_idle()  # what broke this one broke them too, or their first users have to find that out
            if isinstance(error, ReadOnlySqlTransaction):
                self._on_read_only()
            raise translate_error(error, self.address.place, backend=db.backend if db.broken else None) from error
        finally:
            self._release(db)

    def resolve(self, lost: ReplyLost) -> None:
        """See to it that the statement whose reply was lost is over: committed, or never to be."""
        if self.address.is_pooled:
            raise lost  # whose backend it was, only the pooler knows
        seconds = self.address.deadline.total_seconds()
        ended = self.fetch(_END, backend=lost.backend, milliseconds=round(seconds * 1_000 / 2))
        if ended == [(False,)]:
            raise lost

    def renew(self) -> None:
        """Replace every connection by a new one: the server that they are on is no longer the primary.

        Those in use are closed when they are released.
        """
        self._abandon_inherited()
        self._generation += 1
        self._drop_idle()

    def close(self) -> None:
        """Close what is not in use; what is, is closed when it is given back."""
        self._abandon_inherited()
        self._closed.set()
        self._outage.end()
        self._drop_idle()

    def _take(self) -> ServerConnection:
        self._abandon_inherited()
        self._check_open()
        if self._outage.is_on and not self._idle:
            self._outage.wait()  # before a slot is taken: those who wait for one would fail one after the other
        try:
            self._slots.get(timeout=self.address.deadline.total_seconds())
        except Empty:
            raise StoreUnavailable(f"{self.address.place}: {_CROWDED}") from None  # noqa: TRY003  as above
        try:
            return self._pop_alive() or self._open()
        except BaseException:
            self._slots.put(None)
            raise

    def _abandon_inherited(self) -> None:
        """Begin anew on this side of a fork: connections of the other side must not be used here, nor closed."""
        if self._pid != os.getpid():
            self._inherited = self._idle  # or psycopg complains that they were dropped, and not closed
            self._reset()

    def _pop_idle(self) -> ServerConnection | None:
        try:
            return self._idle.pop()
        except IndexError:  # not asked before: another thread may take the last one in between
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
        self._keep(db)
        self._slots.put(None)

    def _keep(self, db: ServerConnection) -> None:
        is_usable = not db.closed and db.pgconn.transaction_status == TransactionStatus.IDLE
        if is_usable and db.generation == self._generation and not self._closed.is_set():
            self._idle.append(db)
        else:
            db.close()

    def _open(self) -> ServerConnection:
        """Connect. A server that was there before is waited for: by `Outage` if it is away, here if it is full."""
        give_up_at = self._deadline()
        pause = 0.01
        while True:
            self._check_open()
            began_at = time.monotonic()
            try:
                return self._connect()
            except StoreUnavailable as failure:
                if is_away(failure):
                    patience = self.address.deadline.total_seconds() if self._was_connected else 0.0
                    self._outage.begin(failure, give_up_at=began_at + patience)
                elif not is_full(failure):
                    raise
                if not self._was_connected or time.monotonic() + pause > give_up_at:
                    raise
            if self._outage.is_on:
                self._outage.wait()
            else:
                self._closed.wait(uniform(pause / 2, pause))  # noqa: S311  no secret: it spreads those who wait
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
            self._keep(self._connect())
        except StoreUnavailable as failure:
            return failure if is_away(failure) else None
        except Exception:  # noqa: BLE001  not lost: the next call connects itself, and raises it
            return None
        return None

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreUnavailable(f"{self.address.place}: {_CLOSED}")  # noqa: TRY003  it says which store

    def _deadline(self) -> float:
        return time.monotonic() + self.address.deadline.total_seconds()


_TABLE: Final = re.compile(r"\bth_\w+\b")
_CLOSED: Final = "this driver was closed"
_CROWDED: Final = "all connections of this driver have been in use for too long; give it more (size)"
_END: Final[LiteralString] = """
    SELECT pg_terminate_backend(pid, %(milliseconds)s)
      FROM pg_stat_activity
     WHERE pid = %(backend)s
       AND application_name = current_setting('application_name')
"""
