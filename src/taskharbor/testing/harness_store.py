"""The store of the test harness: jobs in memory, and users' transactions that it joins on their real databases."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from taskharbor.core.results import Enqueued
from taskharbor.drivers import unwrap
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.memory.tables import Tables
from taskharbor.drivers.sqlite.transactions import check_connection as check_sqlite
from taskharbor.testing.commit_marks import Fate, amark, fates, mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from taskharbor.core.clocks import Clock
    from taskharbor.core.errors import IdempotencyConflict
    from taskharbor.core.model import NewJob
    from taskharbor.core.results import Settlement
    from taskharbor.drivers.base import SettleAnswer
    from taskharbor.testing.commit_marks import Mark

T = TypeVar("T")


class HarnessStore(MemoryDriver):
    """A memory driver that joins the transactions of any supported connection.

    What is written in such a transaction takes effect before the first call after its commit.
    """

    joins_given: Final = True

    def __init__(self, *, clock: Clock) -> None:
        self._keep_in(_HarnessTables(clock, self._apply_committed))
        self._pending: list[_Write] = []
        self.uncommitted = 0
        """How many jobs were enqueued in transactions that are open or were rolled back."""

    def join(self, connection: Any, *, given: Any, notify: bool = True) -> _Joined:  # noqa: ARG002  a commit notifies
        return _Joined(self, connection, given)

    def ajoin(self, connection: Any, *, given: Any, notify: bool = True) -> _AsyncJoined:  # noqa: ARG002  as above
        return _AsyncJoined(self, connection, given)

    def preview(self, connection: object, call: Callable[[], T]) -> T:
        """Return what *call* returns inside the transaction of *connection*, and undo what it does."""
        with self._tables.statement() as _, suppress(_Undo), self.transaction():
            for write in self._pending:
                if write.connection is connection and write.mark.fate_inside() is Fate.COMMITTED:
                    write.apply()
            result = call()
            raise _Undo
        return result

    def stage(self, write: _Write) -> None:
        """Keep *write* until its transaction is committed."""
        with self._tables.statement():
            self._pending.append(write)
            self.uncommitted += write.jobs

    def _apply_committed(self) -> None:
        """Apply the writes of committed transactions, in order, and drop those of rolled back ones."""
        known = fates(write.mark for write in self._pending)
        pending, self._pending = self._pending, []
        for write in pending:
            fate = known[write.mark]
            if fate is Fate.OPEN and write.has_ended():
                fate = write.mark.fate_inside()
            if fate is Fate.OPEN:
                self._pending.append(write)
            elif fate is Fate.COMMITTED:
                write.apply()
                self.uncommitted -= write.jobs


class _Undo(Exception):
    """Raised to roll back a preview."""


class _HarnessTables(Tables):
    """Tables that call *apply_committed* before each statement that is not part of another one."""

    def __init__(self, clock: Clock, apply_committed: Callable[[], None]) -> None:
        super().__init__(clock)
        self._apply_committed = apply_committed

    @contextmanager
    def statement(self) -> Iterator[datetime]:
        with self._hold():
            if self._depth == 1:
                self._apply_committed()
            with super().statement() as now:
                yield now


@dataclass(frozen=True, slots=True)
class _Write:
    """A write in a user's transaction that is not committed as far as is known."""

    connection: object
    mark: Mark
    has_ended: Callable[[], bool]
    apply: Callable[[], object]
    jobs: int


class _Joined:
    """The transaction of a user's connection."""

    def __init__(self, store: HarnessStore, connection: Any, given: Any) -> None:
        self._transaction = _Transaction(store, connection, given)
        self._connection = connection

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        return self._transaction.insert(jobs, mark(self._connection), repeat=repeat)

    def remember(self, name: str, value: str) -> str:
        return self._transaction.store.remember(name, value)

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        return self._transaction.settle(settlements, mark(self._connection))


class _AsyncJoined:
    """The transaction of a user's async connection."""

    def __init__(self, store: HarnessStore, connection: Any, given: Any) -> None:
        self._transaction = _Transaction(store, connection, given)
        self._connection = connection

    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        return self._transaction.insert(jobs, await amark(self._connection), repeat=repeat)

    async def remember(self, name: str, value: str) -> str:
        return self._transaction.store.remember(name, value)

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        return self._transaction.settle(settlements, await amark(self._connection))


class _Transaction:
    """A user's transaction. Its writes are answered now, and applied to *store* when it is committed."""

    def __init__(self, store: HarnessStore, connection: Any, given: Any) -> None:
        _check_connection(connection)
        self.store = store
        self._connection = connection
        self._has_ended = _end_of(given)

    def insert(
        self, jobs: Sequence[NewJob], mark: Mark, *, repeat: bool = False
    ) -> list[Enqueued | IdempotencyConflict]:
        answers = self.store.preview(self._connection, lambda: self.store.insert(jobs, repeat=repeat))
        now = self.store.inspector.now()
        new = [
            replace(job, scheduled_for=job.scheduled_for or now + job.delay)  # the clock may move before the commit
            for job, answer in zip(jobs, answers, strict=True)
            if isinstance(answer, Enqueued) and not answer.existed
        ]
        self._stage(mark, lambda: self.store.insert(new), jobs=len(new))
        return answers

    def settle(self, settlements: Sequence[Settlement], mark: Mark) -> list[SettleAnswer]:
        answers = self.store.preview(self._connection, lambda: self.store.settle(settlements))
        self._stage(mark, lambda: self.store.settle(settlements), jobs=0)
        return answers

    def _stage(self, mark: Mark, apply: Callable[[], object], *, jobs: int) -> None:
        self.store.stage(_Write(self._connection, mark, self._has_ended, apply, jobs))


def _check_connection(connection: Any) -> None:
    """Refuse what the driver of the connection's database would refuse, such as a connection in autocommit mode."""
    if isinstance(connection, sqlite3.Connection):
        check_sqlite(connection)
        return
    from taskharbor.drivers.postgres import asyncpg_transactions, transactions  # noqa: PLC0415  they need psycopg

    home = asyncpg_transactions if unwrap.is_asyncpg(connection) else transactions
    home.check_connection(connection)


def _end_of(given: Any) -> Callable[[], bool]:
    """Return a function that returns whether the transaction that the user began with *given* has ended.

    If it has, the real one may still be open: test suites begin one around each test, to roll it back afterwards.
    Django's ``TestCase`` does so, and so does a SQLAlchemy session on a connection with a transaction of its own.
    """
    if hasattr(given, "atomic_blocks"):  # Django
        blocks = given.atomic_blocks
        own = next((each for each in blocks if not getattr(each, "_from_testcase", False)), None)
        if own is None:
            raise unwrap.outside_atomic()
        return lambda: all(each is not own for each in blocks)
    session = given() if hasattr(given, "session_factory") else given  # SQLAlchemy's scoped_session
    session = getattr(session, "sync_session", session)
    if not hasattr(session, "get_transaction"):
        return lambda: False
    begun = session.get_transaction()
    return lambda: session.get_transaction() is not begun
