"""Configures Django in the process of the tests, once, and points it to the database of each test."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection, connections

from tests.support.django_shop import django_address
from tests.support.postgres import emptied
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKEND: Final = "taskharbor.integrations.django.TaskHarborBackend"
APPS: Final = ["auth", "contenttypes", "sessions", "messages", "admin"]
MIDDLEWARE: Final = ["sessions.middleware.Session", "auth.middleware.Authentication", "messages.middleware.Message"]
CONTEXT: Final = ["template.context_processors.request", "contrib.auth.context_processors.auth"]


def configure() -> None:
    """Configure Django, unless that is done. The database of the settings is not used."""
    if settings.configured:
        return
    has_backport = django.VERSION < (6,)
    folder = Path(tempfile.gettempdir())
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "unused.sqlite3")}},
        INSTALLED_APPS=[
            *(f"django.contrib.{name}" for name in APPS),
            *(["django_tasks"] if has_backport else []),
            "taskharbor.integrations.django",
            "tests.support.django_site",
        ],
        TASKS={
            "default": {
                "BACKEND": BACKEND,
                "QUEUES": ["default", "bulk", "native"],
                "OPTIONS": {"HARBOR": {"policy": _no_delay()}},
            }
        },
        MIDDLEWARE=[f"django.contrib.{name}Middleware" for name in MIDDLEWARE],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [f"django.{each}" for each in CONTEXT]
                    + ["django.contrib.messages.context_processors.messages"]
                },
            }
        ],
        ROOT_URLCONF="tests.support.django_site.urls",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        SECRET_KEY="of the tests",
        ALLOWED_HOSTS=["testserver"],
        USE_TZ=True,
    )
    django.setup()


def _no_delay() -> Any:
    from taskharbor import RetryPolicy  # noqa: PLC0415  not needed if Django is configured
    from taskharbor.core.retry import Fixed  # noqa: PLC0415  as above

    return RetryPolicy(backoff=Fixed(0.001))


@contextmanager
def project(kind: str, folder: Path) -> Iterator[None]:
    """Point Django's default database to a new SQLite file, or to an empty PostgreSQL database."""
    from taskharbor.integrations.django.stores import follow_databases, migrate_database  # noqa: PLC0415  needs settings
    from tests.support.django_site.tasks import RAN  # noqa: PLC0415  as above

    database = (
        {"ENGINE": "django.db.backends.postgresql", **django_address(emptied())}
        if kind == "postgres"
        else {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(folder / "site.sqlite3"),
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
    )
    before = dict(connections.settings["default"])
    use_database({**before, "OPTIONS": {}, "USER": "", "HOST": "", "PORT": "", **database})
    migrate_database("default")
    follow_databases()
    _create_orders()
    try:
        yield
    finally:
        RAN.clear()
        use_database(before)
        follow_databases()


def work() -> None:
    """Run all jobs that are due, and those that wait for their next attempt."""
    from taskharbor.core.results import JobFilter  # noqa: PLC0415  not needed if Django is configured
    from taskharbor.core.states import Status  # noqa: PLC0415  as above
    from taskharbor.integrations.django import harbor_of  # noqa: PLC0415  needs settings

    harbor, retrying = harbor_of(), JobFilter(statuses=frozenset({Status.FAILED}))

    def is_done() -> bool:
        harbor.worker(concurrency=2).drain()
        return not harbor.driver.inspector.find(retrying, limit=1).jobs

    wait_until(is_done)


def use_database(database: dict[str, Any]) -> None:
    """Let Django connect to *database* from now on, in this thread and in that of async queries."""
    connections.settings["default"] = database
    _forget_connection()
    asyncio.run(sync_to_async(_forget_connection)())  # that of the thread in which asgiref runs queries


def _forget_connection() -> None:
    connections.close_all()
    if hasattr(connections._connections, "default"):  # noqa: SLF001  one that does not exist cannot be deleted
        del connections["default"]


def _create_orders() -> None:
    from tests.support.django_site.models import Order  # noqa: PLC0415  needs settings

    if Order._meta.db_table in connection.introspection.table_names():  # noqa: SLF001  Django's documented name
        Order.objects.all().delete()
        return
    with connection.schema_editor() as editor:
        editor.create_model(Order)


configure()
