"""The Django app: its migrations create the tables, its admin shows the jobs, and its command runs workers."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.signals import setting_changed
from django.db.models.signals import pre_migrate


class TaskHarborConfig(AppConfig):  # type: ignore[misc]  # Django has no annotations
    name = "taskharbor.integrations.django"
    label = "taskharbor"
    verbose_name = "TaskHarbor"

    def ready(self) -> None:
        from taskharbor.integrations.django.checks import check_tables  # noqa: PLC0415  it needs the settings

        checks.register(check_tables, checks.Tags.database)
        pre_migrate.connect(_follow_database, dispatch_uid="taskharbor")
        setting_changed.connect(_follow_settings, dispatch_uid="taskharbor")


def _follow_database(**_: Any) -> None:
    """Use the test database from now on: Django's test runner replaces the database, and migrates the new one."""
    from taskharbor.integrations.django.stores import follow_databases  # noqa: PLC0415  it needs the settings

    follow_databases()


def _follow_settings(*, setting: str, **_: Any) -> None:
    """Use the database of changed settings: those of ``override_settings`` in a test."""
    if setting in {"TASKS", "DATABASES"}:
        _follow_database()
