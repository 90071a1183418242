"""Schema migrations: numbered SQL files that create and update the tables of a store.

Migrations only go forward. Each one is a single transaction, and any number of processes may run them
concurrently. The `Schema` protocol contains the store-specific part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Final, Protocol

from taskharbor.core.errors import SchemaOutOfDate

if TYPE_CHECKING:
    from collections.abc import Sequence

RUN_MIGRATIONS: Final = "run 'taskharbor migrate up'"
"""The remedy in `SchemaOutOfDate` if migrations are pending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step, from version ``number - 1`` to ``number``. Its name is the file name without ``.sql``."""

    number: int
    name: str
    sql: str


class Schema(Protocol):
    """Access to the schema version of a store."""

    def version(self) -> int:
        """Return the number of the last applied migration, or 0. Do not create or change anything."""

    def apply(self, migration: Migration) -> bool:
        """Apply *migration* in one exclusive transaction. Return False if it is not the next one.

        Read the version again after locking the store: another process may have applied the migration meanwhile.
        """

    def script(self, migration: Migration) -> str:
        """Return the SQL of `apply` as one readable transaction that the store's own shell can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStatus:
    """The schema version of a store and its pending migrations. A store newer than this code has none pending."""

    found: int
    wanted: int
    pending: tuple[Migration, ...]


def load_migrations(package: str) -> tuple[Migration, ...]:
    """Return the migrations of *package*: its files NNNN_name.sql, numbered from 1 without gaps."""
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
    """Return the version and the pending migrations of the store, without changing it."""
    found = schema.version()
    pending = tuple(migration for migration in migrations if migration.number > found)
    return MigrationStatus(found=found, wanted=len(migrations), pending=pending)


def migrate_up(schema: Schema, migrations: Sequence[Migration]) -> list[Migration]:
    """Apply the pending migrations and return those that this call applied.

    Other processes may apply some of them meanwhile; when it returns, all are applied. A schema that is newer
    than *migrations* raises `SchemaOutOfDate`.
    """
    pending = _check_not_newer(migration_status(schema, migrations)).pending
    applied = [migration for migration in pending if schema.apply(migration)]
    if pending:
        check_schema(schema, migrations)
    return applied


def check_schema(schema: Schema, migrations: Sequence[Migration]) -> None:
    """Raise `SchemaOutOfDate` unless the store has exactly the schema that *migrations* create."""
    status = _check_not_newer(migration_status(schema, migrations))
    if status.pending:
        raise SchemaOutOfDate(str(status.found), str(status.wanted), RUN_MIGRATIONS)


def check_compatible(schema: Schema, migrations: Sequence[Migration]) -> int:
    """Return the version of the store, which must be the newest of *migrations* or the one before it.

    Code is deployed before its migration is applied, so it must work with both. Any other version raises
    `SchemaOutOfDate`.
    """
    status = _check_not_newer(migration_status(schema, migrations))
    if status.found == 0 or len(status.pending) > 1:
        raise SchemaOutOfDate(str(status.found), str(status.wanted), RUN_MIGRATIONS)
    return status.found


def pending_sql(schema: Schema, migrations: Sequence[Migration]) -> str:
    """Return the SQL that `migrate_up` would run now, or an empty string if nothing is pending."""
    return "\n".join(map(schema.script, _check_not_newer(migration_status(schema, migrations)).pending))


class MisnumberedMigration(Exception):
    """A migration file breaks the numbering. This is a defect of the package, not a user error."""

    def __init__(self, file: str, expected: int) -> None:
        super().__init__(file, expected)
        self.file, self.expected = file, expected

    def __str__(self) -> str:
        return f"{self.file}: the next migration must be named {self.expected:04}_name.sql, in a-z, 0-9 and _"


def _check_not_newer(status: MigrationStatus) -> MigrationStatus:
    if status.found > status.wanted:
        raise SchemaOutOfDate(str(status.found), str(status.wanted), "update TaskHarbor")
    return status


_FILE: Final = re.compile(r"(?P<number>[0-9]{4})_[a-z0-9_]+\.sql")
