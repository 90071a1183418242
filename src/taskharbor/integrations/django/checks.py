"""System checks: what is wrong with the settings, and whether migrations are pending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from taskharbor.core.errors import SchemaOutOfDate, TaskHarborError
from taskharbor.core.request import QUEUE_PATTERN
from taskharbor.integrations.django import stores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

APP: Final = "taskharbor.integrations.django"


def check_backend(backend: Any) -> Iterator[Any]:
    """Yield what is wrong with the settings of a backend, without connecting to its database."""
    alias = backend.alias
    if not apps.is_installed(APP):
        yield checks.Error(
            f"{APP!r} is not in INSTALLED_APPS.", hint="Its migrations create the tables.", id=_id("E001")
        )
    unknown = sorted(set(backend.options) - stores.OPTIONS)
    if unknown:
        hint = f"The options are {', '.join(sorted(stores.OPTIONS))}."
        yield checks.Error(f"TASKS[{alias!r}]: unknown option {unknown[0]!r}.", hint=hint, id=_id("E002"))
    for queue in sorted(backend.queues):
        if QUEUE_PATTERN.fullmatch(queue) is None:
            hint = "Use up to 64 letters, digits, dots, hyphens and underscores."
            yield checks.Error(f"TASKS[{alias!r}]: {queue!r} cannot be a queue.", hint=hint, id=_id("E003"))
    yield from _check_database(backend)


def _check_database(backend: Any) -> Iterator[Any]:
    alias, database = backend.alias, backend.database
    if database not in connections.settings:
        hint = "Set OPTIONS['DATABASE'] to an alias in DATABASES."
        yield checks.Error(f"TASKS[{alias!r}]: there is no database {database!r}.", hint=hint, id=_id("E004"))
        return
    try:
        stores.harbor_of(alias)
    except (ImproperlyConfigured, TaskHarborError, TypeError) as error:
        yield checks.Error(f"TASKS[{alias!r}]: {error}.", id=_id("E005"))
        return
    connection = connections[database]
    if connection.vendor == "sqlite" and connection.settings_dict["OPTIONS"].get("transaction_mode") != "IMMEDIATE":
        hint = "Set its OPTIONS['transaction_mode'] to 'IMMEDIATE': otherwise a write after a read may fail."
        yield checks.Warning(
            f"The SQLite database {database!r} begins deferred transactions.", hint=hint, id=_id("W002")
        )
    yield from _check_modules(alias)


def _check_modules(alias: str) -> Iterator[Any]:
    known = stores.modules_with_tasks(stores.backend_options(alias)["IMPORTS"])
    for module in sorted({task.func.__module__ for task in stores.defined_tasks(alias)} - {*known}):
        hint = f"Move them to tasks.py of an installed app, or add {module!r} to OPTIONS['IMPORTS']."
        yield checks.Warning(f"Workers do not import {module}, which defines tasks.", hint=hint, id=_id("W003"))


def check_tables(*, databases: Iterable[str] | None = None, **_: Any) -> Iterator[Any]:
    """Yield a warning for each database whose tables are older than this version of TaskHarbor."""
    for database in sorted({*(databases or ())} & stores.databases()):
        try:
            found = stores.pending_migrations(database)
        except SchemaOutOfDate as error:
            yield checks.Error(f"The database {database!r}: {error}.", id=_id("E006"))
            continue
        if found:
            hint = "Run 'manage.py migrate'."
            yield checks.Warning(
                f"The database {database!r} lacks TaskHarbor's migration {found[0]}.", hint=hint, id=_id("W001")
            )


def _id(number: str) -> str:
    return f"taskharbor.{number}"
