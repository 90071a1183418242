"""All checks of a store, in order: what the later ones need comes first."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from taskharbor.core.errors import SchemaOutOfDate, TaskHarborError
from taskharbor.core.text import plural
from taskharbor.doctor.findings import Finding, Level, not_checked, run_check
from taskharbor.doctor.jobs import check_jobs
from taskharbor.drivers import migrate
from taskharbor.drivers.connect import connect, file_of, postgres_address, schema_for, store_kind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from taskharbor.doctor.findings import Problem
    from taskharbor.drivers.base import Inspector


def examine(url: str, *, keep: timedelta, only_store: bool = False) -> Iterator[Finding]:
    """Check the store at *url*; with *only_store*, only whether a process can use it.

    If the store cannot be used, the checks of its tables and jobs are left out.
    """
    usable = True
    for finding in _usable(url):
        usable = usable and finding.level is not Level.FAIL
        yield finding
    if usable and not only_store:
        yield from _contents(url, keep)


def examine_open(url: str | None, inspector: Inspector, *, keep: timedelta) -> Iterator[Finding]:
    """Check an open store. Without its *url*, or for a store in memory, only what it contains."""
    if url is not None and store_kind(url) != "memory":
        yield from _usable(url)
        if store_kind(url) == "postgres":
            from taskharbor.doctor.postgres import check_operation  # noqa: PLC0415  psycopg is an extra

            yield from check_operation(postgres_address(url), keep=keep)
    yield from check_jobs(inspector, keep=keep)


def _usable(url: str) -> Iterator[Finding]:
    if store_kind(url) == "postgres":
        from taskharbor.doctor.postgres import check_server  # noqa: PLC0415  psycopg is an extra

        yield from check_server(postgres_address(url))
    if (file := file_of(url)) is not None:
        from taskharbor.doctor.sqlite import check_file  # noqa: PLC0415  import only the store in use

        yield from check_file(file)
    yield from run_check("schema", "the schema is up to date", lambda: _schema(url))


def _schema(url: str) -> Iterator[Problem]:
    schema = schema_for(url)
    if schema is None:
        return
    try:
        migrate.check_compatible(*schema)
    except SchemaOutOfDate as error:
        yield Level.FAIL, str(error).removesuffix(f": {error.remedy}"), error.remedy
        return
    if pending := count_pending_migrations(url):
        yield Level.WARN, f"pending: {plural(pending, 'migration')}; this code works without", "taskharbor migrate up"


def count_pending_migrations(url: str) -> int:
    """Return how many migrations the store at *url* lacks. It opens a connection of its own."""
    schema = schema_for(url)
    return 0 if schema is None else len(migrate.migration_status(*schema).pending)


def _contents(url: str, keep: timedelta) -> Iterator[Finding]:
    if store_kind(url) == "postgres":
        from taskharbor.doctor.postgres import check_operation  # noqa: PLC0415  as above

        yield from check_operation(postgres_address(url), keep=keep)
    with ExitStack() as opened:
        try:
            driver = opened.enter_context(closing(connect(url)))
        except TaskHarborError as error:  # what was found so far must not be lost
            yield Finding("jobs", *not_checked(error))
            return
        yield from check_jobs(driver.inspector, keep=keep)
