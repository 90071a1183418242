"""The harbors of a Django project: one for each task backend, on a database of Django's settings.

They are kept for the process, not for a thread: Django makes one backend object for each thread.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from taskharbor.drivers.connect import schema_for
from taskharbor.drivers.migrate import migrate_up, migration_status
from taskharbor.harbor import Harbor
from taskharbor.integrations.django import runner
from taskharbor.integrations.django.tasks_api import Task, task_backends

if TYPE_CHECKING:
    from collections.abc import Mapping

VENDORS: Final = frozenset({"postgresql", "sqlite"})
OPTIONS: Final = frozenset({"DATABASE", "HARBOR", "IMPORTS"})
"""The options of the backend."""


class _Harbors:
    """The harbors of this process by the alias of their backend, and the tasks that were defined so far."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_alias: dict[str, Harbor] = {}
        self.tasks: dict[tuple[str, str], Any] = {}


_HARBORS: Final = _Harbors()


def harbor_of(alias: str = "default") -> Harbor:
    """Return the harbor of a task backend, for tasks of TaskHarbor's own kind in the same project.

    Write ``harbor = harbor_of()``, and ``@harbor.task`` on a function.
    """
    with _HARBORS.lock:
        if alias not in _HARBORS.by_alias:
            options = backend_options(alias)
            harbor = Harbor(url_of_database(options["DATABASE"]), **options["HARBOR"])
            runner.prepare(harbor)
            harbor.extra_queues = tuple(task_backends.settings[alias].get("QUEUES", ()))
            harbor.include(*modules_with_tasks(options["IMPORTS"]))
            _HARBORS.by_alias[alias] = harbor
            for (other, _), task in _HARBORS.tasks.items():
                if other == alias:
                    runner.register(harbor, task)
        return _HARBORS.by_alias[alias]


def add_task(task: Any) -> None:
    """Let workers of the task's backend run *task*. Its first definition counts: ``using`` makes changed copies."""
    key = (task.backend, task.module_path)
    with _HARBORS.lock:
        known = _HARBORS.tasks.get(key)
        if known is not None and known.func is task.func:
            return
        _HARBORS.tasks[key] = task
        if task.backend in _HARBORS.by_alias:
            runner.register(_HARBORS.by_alias[task.backend], task)


def defined_tasks(alias: str) -> list[Any]:
    """Return the tasks of a backend that were defined so far."""
    with _HARBORS.lock:
        return [task for (other, _), task in _HARBORS.tasks.items() if other == alias]


def follow_databases() -> None:
    """Point each harbor to the database that Django uses now, if that has changed.

    The harbors themselves stay the same: tasks of TaskHarbor's own kind belong to them.
    """
    with _HARBORS.lock:
        for alias in {*_HARBORS.by_alias} & {*task_backends.settings}:
            database = backend_options(alias)["DATABASE"]
            if database in connections.settings:  # a check reports a wrong one
                follow_database(_HARBORS.by_alias[alias], database)


def follow_database(harbor: Harbor, database: str) -> None:
    """Point *harbor* to the place where *database* is now. A test runner moves it after the settings were read."""
    url = url_of_database(database)
    if harbor.source != url:
        with _HARBORS.lock:
            harbor.use_store(url)


def backend_options(alias: str) -> Mapping[str, Any]:
    """Return the options of a backend in TASKS, with the defaults."""
    given = task_backends.settings[alias].get("OPTIONS", {})
    return {"DATABASE": "default", "HARBOR": {}, "IMPORTS": (), **given}


def aliases() -> list[str]:
    """Return the aliases of the backends in TASKS that are TaskHarbor's."""
    from taskharbor.integrations.django.backend import TaskHarborBackend  # noqa: PLC0415  it imports this module

    return [alias for alias in task_backends.settings if isinstance(task_backends[alias], TaskHarborBackend)]


def databases() -> set[str]:
    """Return the aliases of the databases in which TaskHarbor's backends store jobs."""
    return {backend_options(alias)["DATABASE"] for alias in aliases()}


def modules_with_tasks(imports: Any) -> list[str]:
    """Return the modules that a worker must import: ``tasks`` of each installed app, and the option IMPORTS."""
    own = [f"{app.name}.tasks" for app in apps.get_app_configs()]
    return [*filter(_exists, own), *imports]


def _exists(module: str) -> bool:
    with suppress(ModuleNotFoundError):
        return find_spec(module) is not None
    return False


def url_of_database(alias: str) -> str:
    """Return the URL of a database in DATABASES, as TaskHarbor's own connections open it."""
    connection = connections[alias]
    if connection.vendor == "sqlite":
        name = os.fspath(connection.settings_dict["NAME"])
        return f"sqlite:///{':memory:' if connection.is_in_memory_db() else quote(name)}"
    if connection.vendor != "postgresql":
        rule = "TaskHarbor stores jobs in PostgreSQL or SQLite; set OPTIONS['DATABASE'] to such a database"
        raise ImproperlyConfigured(f"the database {alias!r} is {connection.display_name}: {rule}")  # noqa: TRY003  Django's
    return _postgres_url(connection)


def _postgres_url(connection: Any) -> str:
    """Return the URL for the parameters with which Django itself connects."""
    given = connection.get_connection_params()
    own = {"context", "cursor_factory", "prepare_threshold", "client_encoding", "pool", "server_side_binding"}
    params = {name: str(value) for name, value in given.items() if value is not None and name not in own}
    user, password = quote(params.pop("user", ""), safe=""), quote(params.pop("password", ""), safe="")
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    name = quote(params.pop("dbname", ""), safe="")
    return f"postgresql://{login}/{name}" + (f"?{urlencode(params, quote_via=quote)}" if params else "")


def migrate_database(alias: str) -> None:
    """Create or update TaskHarbor's tables in a database of Django's settings, unless it is in memory."""
    schema = _schema_of(alias)
    if schema is not None:
        migrate_up(*schema)


def pending_migrations(alias: str) -> list[str]:
    """Return the names of TaskHarbor's own migrations that a database lacks."""
    schema = _schema_of(alias)
    return [] if schema is None else [each.name for each in migration_status(*schema).pending]


def _schema_of(alias: str) -> Any:
    connection = connections[alias]
    is_in_memory = connection.vendor == "sqlite" and connection.is_in_memory_db()
    return None if is_in_memory else schema_for(url_of_database(alias))


def task_at(path: str, alias: str) -> Any:
    """Return the task at the dotted path of a stored job, or None if there is none any more.

    Only modules that the workers of the backend import, too, are imported: a caller that stores a job must not choose
    others.
    """
    module, _, name = path.rpartition(".")
    found = None
    if module in sys.modules or module in modules_with_tasks(backend_options(alias)["IMPORTS"]):
        with suppress(ImportError):
            found = vars(import_module(module)).get(name)
    return found if isinstance(found, Task) else None


def is_aware() -> bool:
    """Return whether the project uses aware datetimes."""
    return bool(settings.USE_TZ)
