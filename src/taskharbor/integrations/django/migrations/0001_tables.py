"""Create TaskHarbor's tables, by its own migrations up to 0004."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from taskharbor.integrations.django.stores import databases, migrate_database

NEWEST = 4


def create_tables(_apps: Any, editor: Any) -> None:
    """Migrate the database if a backend of TaskHarbor stores its jobs there."""
    if editor.connection.alias in databases():
        migrate_database(editor.connection.alias)


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no annotations
    initial = True
    atomic = False  # TaskHarbor's migrations have a connection and transactions of their own

    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(create_tables, atomic=False),
        migrations.CreateModel(
            name="HarborJob",
            fields=[("id", models.UUIDField(primary_key=True, serialize=False))],
            options={"managed": False, "verbose_name": "job", "default_permissions": ("view",)},
        ),
    ]
