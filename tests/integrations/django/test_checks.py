"""System checks of the Django integration, and its migrations."""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.test import override_settings

import taskharbor.integrations.django
from taskharbor.drivers.postgres.schema import MIGRATIONS as POSTGRES
from taskharbor.drivers.sqlite.schema import MIGRATIONS as SQLITE
from taskharbor.integrations.django.checks import check_tables
from taskharbor.integrations.django.management.commands.taskharbor import Command
from taskharbor.integrations.django.stores import add_task, url_of_database
from taskharbor.integrations.django.tasks_api import task_backends
from tests.support import django_project  # isort: split  # noqa: F401  it configures Django
from tests.support.django_project import BACKEND, use_database
from tests.support.django_shop import django_address
from tests.support.django_site.tasks import ship
from tests.support.postgres import database


def found_in(tasks: dict[str, Any]) -> set[str]:
    with override_settings(TASKS=tasks):
        return {str(each.id) for each in task_backends["default"].check()}


@pytest.mark.usefixtures("sqlite")
def test_settings_without_a_mistake_have_no_messages() -> None:
    assert list(task_backends["default"].check()) == []


@pytest.mark.usefixtures("sqlite")
@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"OPTIONS": {"DATABSE": "default"}}, "taskharbor.E002"),
        ({"QUEUES": ["with space"]}, "taskharbor.E003"),
        ({"OPTIONS": {"DATABASE": "other"}}, "taskharbor.E004"),
    ],
)
def test_a_mistake_in_the_settings_is_an_error(settings: dict[str, Any], found: str) -> None:
    assert found in found_in({"default": {"BACKEND": BACKEND, **settings}})


@pytest.mark.usefixtures("sqlite")
def test_deferred_transactions_of_sqlite_are_a_warning() -> None:
    connections["default"].settings_dict["OPTIONS"] = {}

    assert "taskharbor.W002" in {each.id for each in task_backends["default"].check()}


@pytest.mark.usefixtures("sqlite")
def test_tasks_in_a_module_that_workers_do_not_import_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from taskharbor.integrations.django import stores  # noqa: PLC0415  beside its only use

    monkeypatch.setattr(stores._HARBORS, "tasks", {})  # noqa: SLF001  as in a process without the tasks of other tests
    monkeypatch.setattr(ship.func, "__module__", "shop.views")
    add_task(ship)

    [warning] = [each for each in task_backends["default"].check() if each.id == "taskharbor.W003"]

    assert "shop.views" in warning.msg


def test_missing_tables_are_a_warning_until_they_are_migrated(tmp_path: Path) -> None:
    check_migration({"NAME": str(tmp_path / "new.sqlite3")})


def test_missing_tables_of_postgres_are_a_warning_until_they_are_migrated() -> None:
    with database(migrated=False) as url:
        check_migration({"ENGINE": "django.db.backends.postgresql", **django_address(url)})


def check_migration(settings: dict[str, str]) -> None:
    before = dict(connections.settings["default"])
    use_database({**before, **settings})
    try:
        [warning] = check_tables(databases=["default"])
        call_command("migrate", "taskharbor", verbosity=0)

        assert warning.id == "taskharbor.W001"
        assert list(check_tables(databases=["default"])) == []
    finally:
        use_database(before)


def test_the_last_migration_of_django_runs_all_of_ours() -> None:
    folder = Path(taskharbor.integrations.django.__file__).parent / "migrations"
    last = max(file.stem for file in folder.glob("0*.py"))

    module = import_module(f"taskharbor.integrations.django.migrations.{last}")

    assert module.NEWEST == len(SQLITE) == len(POSTGRES)


@pytest.mark.usefixtures("sqlite")
def test_django_finds_no_change_of_our_models_without_a_migration() -> None:
    out = io.StringIO()

    call_command("makemigrations", "taskharbor", check_changes=True, dry_run=True, stdout=out)

    assert "No changes" in out.getvalue()


@pytest.mark.usefixtures("database")
def test_the_url_of_a_database_names_it_with_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = connection.settings_dict
    if connection.vendor == "sqlite":
        assert url_of_database("default") == f"sqlite:///{settings['NAME']}"
        return
    monkeypatch.setitem(settings, "PASSWORD", "p@ss/word")
    monkeypatch.setitem(settings, "OPTIONS", {"sslmode": "prefer"})

    url = url_of_database("default")

    assert ":p%40ss%2Fword@/" in url
    assert "sslmode=prefer" in url
    assert f"/{settings['NAME']}?" in url


@pytest.mark.usefixtures("sqlite")
@pytest.mark.parametrize("words", [["--backend", "reports", "stats"], ["--backend=reports", "stats"]])
def test_an_unknown_backend_is_refused_with_the_known_ones(words: list[str]) -> None:
    err = io.StringIO()

    with pytest.raises(SystemExit) as ended:
        Command(stderr=err).run_from_argv(["manage.py", "taskharbor", *words])

    assert ended.value.code == 2
    assert err.getvalue() == "error: TASKS has no backend of TaskHarbor named 'reports'; it has default\n"
