"""Tests that unsupported connections are refused with an error that names them and the supported ones."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from taskharbor.core.errors import UsageError
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.drivers.unwrap import aunwrap, is_async, unwrap
from taskharbor.testing.conformance.subject import new_job
from tests.support.joined_stores import postgres_store, sqlite_store
from tests.support.shops import by_sqlalchemy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.joined_stores import Store


class Connection:
    """A stand-in for psycopg2's connection, which is not installed here."""


Connection.__module__, Connection.__qualname__ = "psycopg2.extensions", "connection"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (Connection(), "a psycopg2.extensions.connection"),
        ("postgresql://localhost/shop", "a builtins.str"),
        (None, "a builtins.NoneType"),
        (sqlalchemy.create_mock_engine("sqlite://", print), "a sqlalchemy.engine.mock.MockConnection"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unsupported_object_is_named(given: object, named: str) -> None:
    with pytest.raises(UsageError, match=f"connection is {named}: pass a psycopg .3. Connection, a sqlite3"):
        unwrap(given)
    with pytest.raises(UsageError, match=f"connection is {named}: pass a psycopg .3. AsyncConnection, a connection"):
        asyncio.run(aunwrap(given))
    assert not is_async(given)


def test_a_session_over_another_driver_is_refused_by_the_name_of_that_driver() -> None:
    engine = sqlalchemy.create_engine("sqlite://", module=_other_dbapi())

    with (
        Session(engine) as session,
        pytest.raises(UsageError, match=r"Session over a psycopg2\.extensions\.connection"),
    ):
        unwrap(session)
    engine.dispose()  # otherwise Python 3.13 and later report an unclosed connection in a later test


def _other_dbapi() -> Any:
    """Return sqlite3 as a DBAPI whose connections have another class name."""
    made = type("connection", (Connection,), {"__getattr__": lambda self, name: getattr(self.real, name)})
    made.__module__, made.__qualname__ = "psycopg2.extensions", "connection"

    def connect(*_: Any, **__: Any) -> Any:
        connection = made()
        connection.real = sqlite3.connect(":memory:", check_same_thread=False)
        return connection

    return SimpleNamespace(**{**vars(sqlite3), "connect": connect})


def test_an_async_session_is_refused_by_the_sync_call() -> None:
    with pytest.raises(UsageError, match="AsyncSession: it is async; use the async form"):
        unwrap(AsyncSession())


def test_a_psycopg_connection_in_autocommit_mode_is_refused() -> None:
    with postgres_store() as store, psycopg.connect(store.url, autocommit=True) as db:
        refuses_both_verbs(store, unwrap(db))


def test_a_sqlite_connection_in_autocommit_mode_is_refused(tmp_path: Path) -> None:
    with (
        sqlite_store(tmp_path) as store,
        closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as db,
    ):
        refuses_both_verbs(store, unwrap(db))


def test_a_sqlalchemy_connection_in_autocommit_mode_is_refused() -> None:
    with postgres_store() as store:
        engine = sqlalchemy.create_engine(by_sqlalchemy(store.url), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            refuses_both_verbs(store, unwrap(connection))
        engine.dispose()


def refuses_both_verbs(store: Store, connection: object) -> None:
    claim, job = store.take(), new_job()
    before = store.driver.inspector.get([claim.job.id])
    joined = store.driver.join(connection)

    with pytest.raises(UsageError, match="connection is in autocommit mode: begin a transaction first"):
        joined.insert([job])
    with pytest.raises(UsageError, match="connection is in autocommit mode: begin a transaction first"):
        joined.settle([Settlement(claim.lease, Outcome.ack())])

    assert not store.has(job)
    assert store.driver.inspector.get([claim.job.id]) == before
