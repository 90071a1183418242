"""From what users hold to the connection below it, whose transaction a driver joins.

Nobody's framework is imported for that: what somebody holds is known by the names of its classes,
and asked by its public attributes. What comes out is open, belongs to the user, and has, or will
have, a transaction that the user's own commit or rollback ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping


def unwrap(connection: object) -> Any:
    """Return the psycopg ``Connection`` or ``sqlite3.Connection`` that *connection* is, or works through.

    It may be one, or a SQLAlchemy ``Session`` or ``Connection``, or Django's ``connection`` inside
    of ``atomic()``. Anything else is a `UsageError`.
    """
    if is_async(connection):
        rule = "await it: the async form of this call takes it"
        raise UsageError(Problem(field="connection", value=_named(connection), rule=rule))
    unwrap = _find(_SYNC, connection)
    if unwrap is None:
        raise _refused(_ACCEPTED, connection)
    found = unwrap(connection)
    if not _classes(found) & {"psycopg.Connection", "sqlite3.Connection"}:
        raise _refused(_ACCEPTED, connection, found)
    return found


async def aunwrap(connection: object) -> Any:
    """Return the psycopg ``AsyncConnection`` that *connection* is, or works through.

    It may be one, or a SQLAlchemy ``AsyncSession`` or ``AsyncConnection``. Anything else is a `UsageError`.
    """
    unwrap = _find(_ASYNC, connection)
    if unwrap is None:
        raise _refused(_AWAITED, connection)
    found = await unwrap(connection)
    if "psycopg.AsyncConnection" not in _classes(found):
        raise _refused(_AWAITED, connection, found)
    return found


def is_async(connection: object) -> bool:
    """Tell whether *connection* is one for `aunwrap`."""
    return _find(_ASYNC, connection) is not None


def join(driver: object, way: str, connection: object, **options: Any) -> Any:
    """Return *connection*, as `unwrap` or `aunwrap` gave it, joined by the method *way* of *driver*, if it has that."""
    method = getattr(driver, way, None)
    if method is None:
        rule = _NOT_AWAITED if hasattr(driver, "join") else "this store cannot join it; sqlite and postgresql can"
        raise UsageError(Problem(field="connection", value=_named(connection), rule=rule))
    return method(connection, **options)


def check_kind(connection: object, kind: type, rule: str) -> None:
    """Refuse a *connection* to another kind of store, before anything is asked of it."""
    if not isinstance(connection, kind):
        raise UsageError(Problem(field="connection", value=_named(connection), rule=rule))


def _itself(connection: Any) -> Any:
    return connection


def _of_session(session: Any) -> Any:
    return _of_sqlalchemy(session.connection())  # which begins a transaction, where there is none


def _of_sqlalchemy(connection: Any) -> Any:
    if not connection.in_transaction():
        connection.begin()  # or SQLAlchemy would not know of one, and its commit would do nothing
    return connection.connection.driver_connection


def _of_django(connection: Any) -> Any:
    is_inside = getattr(connection, "in_atomic_block", None)
    if is_inside is None:  # the same kind of proxy stands before Django's caches
        raise _refused(_ACCEPTED, connection)
    if not is_inside:
        rule = "use it inside of 'with transaction.atomic():', or there is no transaction to join"
        raise UsageError(Problem(field="connection", value="Django's, outside of atomic()", rule=rule))
    return connection.connection


async def _itself_soon(connection: Any) -> Any:
    return connection


async def _of_async_session(session: Any) -> Any:
    return await _of_async_sqlalchemy(await session.connection())


async def _of_async_sqlalchemy(connection: Any) -> Any:
    if not connection.in_transaction():
        await connection.begin()  # as above
    return (await connection.get_raw_connection()).driver_connection


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
    "psycopg.AsyncConnection": _itself_soon,
    "sqlalchemy.ext.asyncio.session.AsyncSession": _of_async_session,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _of_async_session,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _of_async_sqlalchemy,
}
_ACCEPTED: Final = (
    "give a psycopg (3) Connection, a sqlite3.Connection, a SQLAlchemy Session or Connection over one of these"
    " (postgresql+psycopg:// or sqlite://), or Django's connection over one of these"
)
_NOT_AWAITED: Final = "this store joins no connection that is awaited; give the sync form of this call a sync one"
_AWAITED: Final = "give a psycopg (3) AsyncConnection, or a SQLAlchemy AsyncSession or AsyncConnection over one (postgresql+psycopg://)"


def _find(kinds: Mapping[str, Any], connection: object) -> Any:
    """Return what stands in *kinds* for one of the classes of *connection*; None, if nothing does."""
    classes = _classes(connection)
    return next((kinds[name] for name in kinds if name in classes), None)


def _classes(connection: object) -> set[str]:
    return {f"{each.__module__}.{each.__qualname__}" for each in type(connection).__mro__}


def _named(connection: object) -> str:
    kind = type(connection)
    return f"a {kind.__module__}.{kind.__qualname__}"


def _refused(accepted: str, *given: object) -> UsageError:
    """Say what was *given*, and what that works through, where it does."""
    return UsageError(Problem(field="connection", value=" over ".join(map(_named, given)), rule=accepted))
