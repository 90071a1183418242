"""Migrations: numbered SQL files that bring the tables of a store to what this code needs.

They only go forward, each is one transaction, and any number of processes may start
them at once. What is special about a store stands behind `Schema`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Final, Protocol

from taskharbor.core.errors import SchemaOutOfDate

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step, from the version before its number to its number. Its name is that of its file, without the ending."""

    number: int
    name: str
    sql: str


class Schema(Protocol):
    """What a store offers to those who migrate it."""

    def version(self) -> int:
        """Return the number of the last migration that was applied, or 0. It changes and creates nothing."""

    def apply(self, migration: Migration) -> bool:
        """Apply *migration* if it is the next one, all of it or nothing, and alone; False if it is not the next one.

        The version must be read again once the store is locked: somebody else may have
        applied the migration meanwhile.
        """

    def script(self, migration: Migration) -> str:
        """Return what `apply` runs, as one transaction that people can read, and run with the store's own tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStatus:
    """Where a store stands. A store that is newer than this code has nothing pending."""

    found: int
    wanted: int
    pending: tuple[Migration, ...]


def load_migrations(package: str) -> tuple[Migration, ...]:
    """Return the migrations of *package*: its files NNNN_name.sql, numbered from 1 without a gap."""
    files = sorted(
        (file for file in resources.files(package).iterdir() if file.name.endswith(".sql")), key=lambda file: file.name
    )
    for number, file in enumerate(files, start=1):
        named = _FILE.fullmatch(file.name)
        if named is None or int(named["number"]) != number:
            raise MisnumberedMigration(file.name, number)
    return tuple(
        Migration(number=number, name=file.name.removesuffix(".sql"), sql=file.read_text("utf-8"))
        for number, file in enumerate(files, start=1)
    )


def migration_status(schema: Schema, migrations: Sequence[Migration]) -> MigrationStatus:
    """Return where the store stands, and change nothing."""
    found = schema.version()
    pending = tuple(migration for migration in migrations if migration.number > found)
    return MigrationStatus(found=found, wanted=len(migrations), pending=pending)


def migrate_up(schema: Schema, migrations: Sequence[Migration]) -> list[Migration]:
    """Apply what is pending, and return what this call applied: others may have done the rest meanwhile.

    When it returns, the schema fits. A schema that is newer than *migrations* is refused.
    """
    pending = _not_newer(migration_status(schema, migrations)).pending
    applied = [migration for migration in pending if schema.apply(migration)]
    if pending:
        check_schema(schema, migrations)
    return applied


def check_schema(schema: Schema, migrations: Sequence[Migration]) -> None:
    """Raise `SchemaOutOfDate` unless the store has just the schema that *migrations* make."""
    where = _not_newer(migration_status(schema, migrations))
    if where.pending:
        raise SchemaOutOfDate(str(where.found), str(where.wanted), _MIGRATE)


def check_compatible(schema: Schema, migrations: Sequence[Migration]) -> int:
    """Return the version that the store has: the newest of *migrations*, or the one before it.

    Code is deployed before its migration is applied, so it must work on both. Any other
    version raises `SchemaOutOfDate`.
    """
    where = _not_newer(migration_status(schema, migrations))
    if where.found == 0 or len(where.pending) > 1:
        raise SchemaOutOfDate(str(where.found), str(where.wanted), _MIGRATE)
    return where.found


def pending_sql(schema: Schema, migrations: Sequence[Migration]) -> str:
    """Return what `migrate_up` would apply now as a script for people; empty if nothing is pending."""
    return "\n".join(map(schema.script, _not_newer(migration_status(schema, migrations)).pending))


class MisnumberedMigration(Exception):
    """A file breaks the numbering: a mistake in the package, not of its user."""

    def __init__(self, file: str, expected: int) -> None:
        super().__init__(file, expected)
        self.file, self.expected = file, expected

    def __str__(self) -> str:
        return f"{self.file}: the next migration must be named {self.expected:04}_name.sql, in a-z, 0-9 and _"


def _not_newer(where: MigrationStatus) -> MigrationStatus:
    if where.found > where.wanted:
        raise SchemaOutOfDate(str(where.found), str(where.wanted), "update TaskHarbor")
    return where


_MIGRATE: Final = "run 'taskharbor migrate up'"
_FILE: Final = re.compile(r"(?P<number>[0-9]{4})_[a-z0-9_]+\.sql")
