"""Open a store by its URL, and mask secrets in URLs for display."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from taskharbor.core.errors import Problem, UsageError
from taskharbor.installation import install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taskharbor.drivers.base import Driver
    from taskharbor.drivers.migrate import Migration, Schema
    from taskharbor.drivers.postgres.server import ServerAddress


def connect(url: str) -> Driver:
    """Open the store at *url*. The caller must close it.

    >>> connect("memory://").inspector.queues()
    []
    """
    return _OPEN[store_kind(url)](url)


def store_kind(url: str) -> str:
    """Return the kind of store that *url* refers to, or raise a `UsageError` that says why it cannot be opened.

    >>> store_kind("memory://")
    'memory'
    """
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise NotAUrl(url)
    name = scheme["name"].lower()
    if name not in _STORES:
        raise UnknownStore(name)
    return _STORES[name]


def file_of(url: str) -> Path | None:
    """Return the file that *url* refers to, or None if that store is not a file.

    >>> file_of("sqlite:///jobs.db")
    PosixPath('jobs.db')
    """
    return _path_in(url) if store_kind(url) == "sqlite" else None


def schema_for(url: str) -> tuple[Schema, tuple[Migration, ...]] | None:
    """Return the schema of the store at *url* and its migrations, or None if that store has no schema.

    It does not open a driver, since that would migrate the store or reject its schema.

    >>> schema_for("memory://") is None
    True
    """
    schemas = {"postgres": _postgres_schema, "sqlite": _sqlite_schema}
    store = store_kind(url)
    return schemas[store](url) if store in schemas else None


def mask_url(url: str) -> str:
    """Return *url* without its password and secret parameters, for display.

    A raw ``@``, ``/`` or ``?`` in a password shifts the parts of a URL: what looks like the host may be the
    end of the password. So only an unambiguous URL is shown in parts; of any other, only the scheme is shown.

    >>> mask_url("postgresql://app:hunter2@db/app?sslmode=require")
    'postgresql://app:***@db/app?sslmode=require'
    >>> mask_url("postgresql://app:hunt/er@2@db/app")
    'postgresql://***'
    """
    parts = _UNAMBIGUOUS.fullmatch(url)
    if parts is None:
        scheme = _SCHEME.match(url)
        return f"{scheme[0]}***" if scheme else "***"
    start, end = parts.span("password")
    without_password = url if start < 0 else f"{url[:start]}***{url[end:]}"
    return _SECRET.sub(r"\1***", without_password)


class NotAUrl(UsageError):
    """The URL has no scheme, or it has no file path although the scheme needs one."""

    def __init__(self, url: str) -> None:
        self.shown = mask_url(url)
        super().__init__(self.shown)  # never the URL itself: errors appear in logs and error trackers

    def __str__(self) -> str:
        if self.shown.lower().startswith("sqlite:"):
            return f"{self.shown!r} is not the URL of a file; write sqlite:///jobs.db or sqlite:////var/lib/jobs.db"
        return f"{self.shown!r} is not the URL of a store; write one such as {_usable()}"


class UnknownStore(UsageError):
    """No store has this URL scheme."""

    def __init__(self, scheme: str) -> None:
        super().__init__(scheme)
        self.scheme = scheme

    def __str__(self) -> str:
        nearest = get_close_matches(self.scheme, _STORES, n=1)
        hint = f"did you mean {nearest[0]}://?" if nearest else f"use one such as {_usable()}"
        return f"no store has URLs that begin with {self.scheme}://; {hint}"


class DriverNotInstalled(UsageError):
    """The store is supported, but its client package is not installed."""

    def __init__(self, store: str) -> None:
        super().__init__(store)
        self.store = store

    def __str__(self) -> str:
        return f"the {self.store} driver is not installed; run: {install_command(self.store)}"


def _usable() -> str:
    return "postgresql://localhost/app or sqlite:///jobs.db"


def _open_memory(_url: str) -> Driver:
    from taskharbor.drivers.memory import MemoryDriver  # noqa: PLC0415  import only the store in use

    return MemoryDriver()


def _open_sqlite(url: str) -> Driver:
    from taskharbor.drivers.sqlite import SqliteDriver  # noqa: PLC0415  import only the store in use

    return SqliteDriver(_path_in(url))


def _sqlite_schema(url: str) -> tuple[Schema, tuple[Migration, ...]]:
    from taskharbor.drivers.sqlite.schema import MIGRATIONS, SqliteSchema  # noqa: PLC0415  as above

    return SqliteSchema(_path_in(url)), MIGRATIONS


def _open_postgres(url: str) -> Driver:
    _require_psycopg()
    from taskharbor.drivers.postgres import PostgresDriver  # noqa: PLC0415  as above

    libpq_url, own = _split_parameters(url)
    return PostgresDriver(
        libpq_url,
        schema=own.get("schema", "public"),
        is_pooled="pooler" in own,
        claims_asynchronously="claims" in own,
    )


def _postgres_schema(url: str) -> tuple[Schema, tuple[Migration, ...]]:
    address = postgres_address(url)
    from taskharbor.drivers.postgres.schema import MIGRATIONS, PostgresSchema  # noqa: PLC0415  as above

    return PostgresSchema(address), MIGRATIONS


def postgres_address(url: str) -> ServerAddress:
    """Return the server and schema that the URL of a PostgreSQL store refers to. It limits the wait for replies."""
    _require_psycopg()
    from taskharbor.drivers.postgres.server import ServerAddress  # noqa: PLC0415  as above

    libpq_url, own = _split_parameters(url)
    return ServerAddress(url=libpq_url, schema=own.get("schema", "public"), is_pooled="pooler" in own, is_timed=True)


def _require_psycopg() -> None:
    if find_spec("psycopg") is None:
        raise DriverNotInstalled("postgres")


def _split_parameters(url: str) -> tuple[str, dict[str, str]]:
    """Return *url* without TaskHarbor's own parameters, and those. libpq rejects unknown parameters."""
    scheme, _, address = url.partition("://")
    base, _, query = address.partition("?")
    pairs = [pair for pair in query.split("&") if pair]
    own = {
        name: unquote(value) for name, _, value in (pair.partition("=") for pair in pairs) if name in _OWN_PARAMETERS
    }
    for name, (value, rule) in _SWITCHES.items():
        if own.get(name, value) != value:
            raise UsageError(Problem(field=name, value=own[name], rule=f"{name}={value} {rule}"))
    rest = "&".join(pair for pair in pairs if pair.partition("=")[0] not in _OWN_PARAMETERS)
    return f"{scheme.lower()}://{base}{'?' if rest else ''}{rest}", own


def _path_in(url: str) -> Path:
    parts = _FILE.fullmatch(url)
    # A :memory: database is visible to a single connection only.
    if parts is None or parts["path"] == ":memory:":
        raise NotAUrl(url)
    return Path(unquote(parts["path"]))


_OPEN: Final[Mapping[str, Callable[[str], Driver]]] = MappingProxyType(
    {"memory": _open_memory, "postgres": _open_postgres, "sqlite": _open_sqlite}
)
_STORES: Final = MappingProxyType(
    {"memory": "memory", "postgres": "postgres", "postgresql": "postgres", "sqlite": "sqlite"}
)
_SWITCHES: Final = MappingProxyType(
    {
        "claims": ("asynchronous", "claims jobs without waiting for the disk; leave it out otherwise"),
        "pooler": ("transaction", "is for a pooler in transaction mode; leave it out otherwise"),
    }
)
"""Parameters that have one value, and what it does."""
_OWN_PARAMETERS: Final = (*_SWITCHES, "schema")

_SCHEME: Final = re.compile(r"(?P<name>[a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_FILE: Final = re.compile(r"sqlite:///(?P<path>[^?#]*[^?#/])", re.IGNORECASE)  # parameters are reserved

# Unambiguous: at most one raw @, directly after the user and password, and colons only before a password, before
# a numeric port, or in a drive name.
_HOST: Final = r"(?: \[ [0-9a-f:.%]* \] | (?: [\w.-] | %2F )* ) (?: :\d* )?"  # %2F: a socket directory
_PARAMETER: Final = r"[\w.-]+ = [^\s@\#&]*"
_UNAMBIGUOUS: Final = re.compile(
    rf"""
    (?: [a-z][a-z0-9+.-]* :// )?+
    (?: [^\s:@/?\#]* (?: : (?P<password> [^\s@/?\#]* ) )? @ )?
    {_HOST} (?: , {_HOST} )*
    (?: / (?: [a-z]: / )? [^\s:@?\#]* )?
    (?: \? {_PARAMETER} (?: & {_PARAMETER} )* )?
    """,
    re.VERBOSE | re.IGNORECASE,
)

# A raw & in a secret would end it too early, so everything after the first secret is masked.
_SECRET: Final = re.compile(r"((?:pass|pwd|secret|token|key|cred)[\w.-]*(?:=|%3D)).*", re.IGNORECASE)
