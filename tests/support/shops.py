"""Shops that keep their orders in the same database as our jobs, one for each supported database library."""

from __future__ import annotations

import json
import sqlite3
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

ORDERS: Final = "CREATE TABLE orders (id integer)"
ORDER: Final = "INSERT INTO orders VALUES (1)"
COUNT: Final = "SELECT count(*) FROM orders"


class Regret(Exception):
    """Raised by a shop to roll back to a savepoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """A shop's own connection and the operations on it. None of them uses our code."""

    connection: object
    order: Callable[[], object]
    commit: Callable[[], object]
    rollback: Callable[[], object]
    savepoint: Callable[[], AbstractContextManager[Any]]


@contextmanager
def psycopg_shop(url: str) -> Iterator[Shop]:
    with psycopg.connect(url) as db:
        yield Shop(
            connection=db,
            order=lambda: db.execute(ORDER),
            commit=db.commit,
            rollback=db.rollback,
            savepoint=db.transaction,
        )


@contextmanager
def sqlite_shop(url: str) -> Iterator[Shop]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
        db.row_factory = lambda cursor, row: {name: value for (name, *_), value in zip(cursor.description, row)}  # noqa: B905  as in the sqlite3 manual

        @contextmanager
        def savepoint() -> Iterator[None]:
            db.execute("SAVEPOINT shop")
            try:
                yield
            except Regret:
                db.execute("ROLLBACK TO shop")
                raise

        yield Shop(
            connection=db,
            order=lambda: db.execute(ORDER),
            commit=db.commit,
            rollback=db.rollback,
            savepoint=savepoint,
        )


@contextmanager
def session_shop(url: str) -> Iterator[Shop]:
    with _engine(url) as engine, Session(engine) as session:
        yield _shop_of(session, session)


@contextmanager
def scoped_session_shop(url: str) -> Iterator[Shop]:
    with _engine(url) as engine, ExitStack() as stack:
        scoped = scoped_session(sessionmaker(engine))
        stack.callback(scoped.remove)
        yield _shop_of(scoped, scoped)


@contextmanager
def connection_shop(url: str) -> Iterator[Shop]:
    with _engine(url) as engine, engine.connect() as connection:
        yield _shop_of(connection, connection)


def _shop_of(given: object, shop: Any) -> Shop:
    return Shop(
        connection=given,
        order=lambda: shop.execute(sqlalchemy.text(ORDER)),
        commit=shop.commit,
        rollback=shop.rollback,
        savepoint=shop.begin_nested,
    )


@contextmanager
def _engine(url: str, **options: Any) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(by_sqlalchemy(url), **options)
    try:
        yield engine
    finally:
        engine.dispose()


def by_sqlalchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


SHOPS: Final[dict[str, Callable[[str], AbstractContextManager[Shop]]]] = {
    "psycopg": psycopg_shop,
    "SQLAlchemy session on PostgreSQL": session_shop,
    "SQLAlchemy scoped session on PostgreSQL": scoped_session_shop,
    "SQLAlchemy connection on PostgreSQL": connection_shop,
    "sqlite3": sqlite_shop,
    "SQLAlchemy session on SQLite": session_shop,
    "SQLAlchemy connection on SQLite": connection_shop,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncShop:
    """A `Shop` whose operations are awaited."""

    connection: object
    order: Callable[[], Awaitable[object]]
    commit: Callable[[], Awaitable[object]]
    rollback: Callable[[], Awaitable[object]]
    savepoint: Callable[[], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def async_psycopg_shop(url: str) -> AsyncIterator[AsyncShop]:
    async with await psycopg.AsyncConnection.connect(url) as db:
        yield AsyncShop(
            connection=db,
            order=lambda: db.execute(ORDER),
            commit=db.commit,
            rollback=db.rollback,
            savepoint=db.transaction,
        )


@asynccontextmanager
async def asyncpg_shop(url: str) -> AsyncIterator[AsyncShop]:
    db = await asyncpg.connect(url)
    try:
        yield await _asyncpg_shop_of(db)
    finally:
        await db.close()


@asynccontextmanager
async def asyncpg_pool_shop(url: str) -> AsyncIterator[AsyncShop]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as db:
        # Codecs of the application must not change how our values are sent and read. Many use text for uuids.
        await db.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await db.set_type_codec("uuid", encoder=str.lower, decoder=str.lower, schema="pg_catalog")
        yield await _asyncpg_shop_of(db)


async def _asyncpg_shop_of(db: Any) -> AsyncShop:
    """Begin a transaction, and the next one after each commit or rollback, as psycopg does by itself."""
    begun: list[Any] = []

    async def begin() -> None:
        begun.append(db.transaction())
        await begun[-1].start()

    async def commit() -> None:
        await begun[-1].commit()
        await begin()

    async def rollback() -> None:
        await begun[-1].rollback()
        await begin()

    await begin()
    return AsyncShop(
        connection=db, order=lambda: db.execute(ORDER), commit=commit, rollback=rollback, savepoint=db.transaction
    )


@asynccontextmanager
async def asyncpg_session_shop(url: str) -> AsyncIterator[AsyncShop]:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with AsyncSession(engine) as session:
            yield _async_shop_of(session)
    finally:
        await engine.dispose()


@asynccontextmanager
async def async_session_shop(url: str) -> AsyncIterator[AsyncShop]:
    engine = create_async_engine(by_sqlalchemy(url))
    try:
        async with AsyncSession(engine) as session:
            yield _async_shop_of(session)
    finally:
        await engine.dispose()


@asynccontextmanager
async def async_connection_shop(url: str) -> AsyncIterator[AsyncShop]:
    engine = create_async_engine(by_sqlalchemy(url))
    try:
        async with engine.connect() as connection:
            yield _async_shop_of(connection)
    finally:
        await engine.dispose()


def _async_shop_of(shop: Any) -> AsyncShop:
    return AsyncShop(
        connection=shop,
        order=lambda: shop.execute(sqlalchemy.text(ORDER)),
        commit=shop.commit,
        rollback=shop.rollback,
        savepoint=shop.begin_nested,
    )


ASYNC_SHOPS: Final[dict[str, Callable[[str], AbstractAsyncContextManager[AsyncShop]]]] = {
    "psycopg": async_psycopg_shop,
    "asyncpg": asyncpg_shop,
    "a pool of asyncpg": asyncpg_pool_shop,
    "SQLAlchemy session on asyncpg": asyncpg_session_shop,
    "SQLAlchemy session": async_session_shop,
    "SQLAlchemy connection": async_connection_shop,
}
