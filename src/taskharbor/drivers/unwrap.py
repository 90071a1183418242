"""Find the raw database connection behind a SQLAlchemy or Django object, so that a driver can join its transaction.

No framework is imported: objects are recognized by their class names and accessed by public attributes. The raw
connection is open and belongs to the caller, whose own commit or rollback ends its transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping


def unwrap(connection: object) -> Any:
    """Return the psycopg ``Connection`` or ``sqlite3.Connection`` behind *connection*.

    *connection* may be one of these, a SQLAlchemy ``Session`` or ``Connection``, or Django's ``connection``
    inside ``atomic()``. Anything else raises `UsageError`.
    """
    if is_async(connection):
        rule = "it is async; use the async form of this call"
        raise UsageError(Problem(field="connection", value=_describe(connection), rule=rule))
    unwrap = _find(_SYNC, connection)
    if unwrap is None:
        raise _unsupported(_ACCEPTED_SYNC, connection)
    found = unwrap(connection)
    if not _classes(found) & {"psycopg.Connection", "sqlite3.Connection"}:
        raise _unsupported(_ACCEPTED_SYNC, connection, found)
    return found


async def aunwrap(connection: object) -> Any:
    """Return the psycopg ``AsyncConnection`` or the connection of asyncpg behind *connection*.

    *connection* may be one of these, or a SQLAlchemy ``AsyncSession`` or ``AsyncConnection``. Anything else raises
    `UsageError`.
    """
    unwrap = _find(_ASYNC, connection)
    if unwrap is None:
        raise _unsupported(_ACCEPTED_ASYNC, connection)
    found = await unwrap(connection)
    if "psycopg.AsyncConnection" not in _classes(found) and not is_asyncpg(found):
        raise _unsupported(_ACCEPTED_ASYNC, connection, found)
    return found


def is_async(connection: object) -> bool:
    """Return whether *connection* is one for `aunwrap`."""
    return _find(_ASYNC, connection) is not None


def is_asyncpg(connection: object) -> bool:
    """Return whether *connection* is one of asyncpg, or one that its pool lends."""
    return bool(_classes(connection) & {"asyncpg.connection.Connection", "asyncpg.pool.PoolConnectionProxy"})


def join(driver: object, connection: object, **options: Any) -> Any:
    """Join the transaction of *connection* with the driver's method ``join``, if it has that."""
    return _join(driver, "join", unwrap(connection), connection, options)


async def ajoin(driver: object, connection: object, **options: Any) -> Any:
    """Join the transaction of an async *connection* with the driver's method ``ajoin``, if it has that."""
    return _join(driver, "ajoin", await aunwrap(connection), connection, options)


def _join(driver: object, method_name: str, found: object, given: object, options: dict[str, Any]) -> Any:
    method = getattr(driver, method_name, None)
    if method is None:
        rule = _NO_ASYNC if hasattr(driver, "join") else "this store cannot join it; sqlite and postgresql can"
        raise UsageError(Problem(field="connection", value=_describe(found), rule=rule))
    # The store of the test harness must also see the session around the connection, whose commit it waits for.
    return method(found, **options, given=given) if hasattr(driver, "joins_given") else method(found, **options)


def check_kind(connection: object, kind: type, rule: str) -> None:
    """Reject a *connection* to another kind of store before it is used."""
    if not isinstance(connection, kind):
        raise UsageError(Problem(field="connection", value=_describe(connection), rule=rule))


def _itself(connection: Any) -> Any:
    return connection


def _of_session(session: Any) -> Any:
    return _of_sqlalchemy(session.connection())  # begins a transaction if there is none


def _of_sqlalchemy(connection: Any) -> Any:
    if not connection.in_transaction():
        connection.begin()  # otherwise SQLAlchemy sees no transaction, and its commit does nothing
    return connection.connection.driver_connection


def _of_django(connection: Any) -> Any:
    is_inside = getattr(connection, "in_atomic_block", None)
    if is_inside is None:  # Django's caches use the same proxy class
        raise _unsupported(_ACCEPTED_SYNC, connection)
    if not is_inside:
        raise outside_atomic()
    return connection.connection


def outside_atomic() -> UsageError:
    """Return the error for Django's connection if no transaction was begun with it."""
    rule = "use it inside 'with transaction.atomic():'; otherwise there is no transaction to join"
    return UsageError(Problem(field="connection", value="Django's, outside atomic()", rule=rule))


async def _async_itself(connection: Any) -> Any:
    return connection


async def _of_async_session(session: Any) -> Any:
    return await _of_async_sqlalchemy(await session.connection())


async def _of_async_sqlalchemy(connection: Any) -> Any:
    if not connection.in_transaction():
        await connection.begin()  # as above
    found = (await connection.get_raw_connection()).driver_connection
    if is_asyncpg(found) and not found.is_in_transaction():
        # SQLAlchemy begins the transaction of asyncpg with the first statement. A joined one would come before it.
        await connection.exec_driver_sql("SELECT 1")
    return found


_SYNC: Final[Mapping[str, Callable[[Any], Any]]] = {
    "psycopg.Connection": _itself,
    "sqlite3.Connection": _itself,
    "sqlalchemy.orm.session.Session": _of_session,
    "sqlalchemy.orm.scoping.scoped_session": _of_session,
    "sqlalchemy.engine.base.Connection": _of_sqlalchemy,
    "django.db.backends.base.base.BaseDatabaseWrapper": _of_django,
    "django.utils.connection.ConnectionProxy": _of_django,
}
_ASYNC: Final[Mapping[str, Callable[[Any], Awaitable[Any]]]] = {
    "psycopg.AsyncConnection": _async_itself,
    "asyncpg.connection.Connection": _async_itself,
    "asyncpg.pool.PoolConnectionProxy": _async_itself,
    "sqlalchemy.ext.asyncio.session.AsyncSession": _of_async_session,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _of_async_session,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _of_async_sqlalchemy,
}
_ACCEPTED_SYNC: Final = (
    "pass a psycopg (3) Connection, a sqlite3.Connection, a SQLAlchemy Session or Connection over one of these"
    " (postgresql+psycopg:// or sqlite://), or Django's connection over one of these"
)
_NO_ASYNC: Final = "this store cannot join async connections; pass a sync one to the sync form of this call"
_ACCEPTED_ASYNC: Final = (
    "pass a psycopg (3) AsyncConnection, a connection of asyncpg, or a SQLAlchemy AsyncSession or AsyncConnection over"
    " one of these (postgresql+psycopg:// or postgresql+asyncpg://)"
)


def _find(kinds: Mapping[str, Any], connection: object) -> Any:
    """Return the value in *kinds* for a class of *connection*, or None."""
    classes = _classes(connection)
    return next((kinds[name] for name in kinds if name in classes), None)


def _classes(connection: object) -> set[str]:
    return {f"{each.__module__}.{each.__qualname__}" for each in type(connection).__mro__}


def _describe(connection: object) -> str:
    kind = type(connection)
    return f"a {kind.__module__}.{kind.__qualname__}"


def _unsupported(accepted: str, *given: object) -> UsageError:
    """Return an error that names the *given* object, and the raw connection behind it, if any."""
    return UsageError(Problem(field="connection", value=" over ".join(map(_describe, given)), rule=accepted))
