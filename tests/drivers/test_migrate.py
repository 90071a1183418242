"""Tests of the migration runner on real files."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.core.errors import SchemaOutOfDate
from taskharbor.drivers.migrate import (
    Migration,
    MisnumberedMigration,
    check_compatible,
    check_schema,
    load_migrations,
    migrate_up,
    migration_status,
    pending_sql,
)
from taskharbor.drivers.sqlite.schema import MIGRATIONS, SqliteSchema

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_SECONDS: Final = 60  # far more than any of the processes needs

ONE: Final = Migration(number=1, name="0001_one", sql="CREATE TABLE one (a);")
TWO: Final = Migration(number=2, name="0002_two", sql="CREATE TABLE two (a); INSERT INTO two VALUES (1);")
BROKEN: Final = Migration(number=2, name="0002_broken", sql="CREATE TABLE two (a); INSERT INTO nowhere VALUES (1);")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def test_a_fresh_file_gets_every_migration_in_order(file: Path) -> None:
    applied = migrate_up(SqliteSchema(file), [ONE, TWO])

    assert applied == [ONE, TWO]
    assert rows(file, "SELECT number, name FROM th_migrations") == [(1, "0001_one"), (2, "0002_two")]
    assert rows(file, "SELECT max(number) FROM th_migrations") == [(2,)]
    assert rows(file, "SELECT * FROM two") == [(1,)]


def test_the_second_time_there_is_nothing_to_do(file: Path) -> None:
    migrate_up(SqliteSchema(file), [ONE, TWO])
    before = file.read_bytes()

    assert migrate_up(SqliteSchema(file), [ONE, TWO]) == []
    assert file.read_bytes() == before


def test_an_older_file_gets_only_what_it_lacks(file: Path) -> None:
    migrate_up(SqliteSchema(file), [ONE])

    assert migrate_up(SqliteSchema(file), [ONE, TWO]) == [TWO]


def test_a_migration_that_is_not_the_next_one_is_left_alone(file: Path) -> None:
    schema = SqliteSchema(file)

    assert schema.apply(TWO) is False
    assert schema.apply(ONE) is True
    assert schema.apply(ONE) is False
    assert schema.version() == 1


def test_a_migration_that_fails_leaves_nothing_behind(file: Path) -> None:
    schema = SqliteSchema(file)
    migrate_up(schema, [ONE])
    before = master(file)

    with pytest.raises(sqlite3.OperationalError, match="nowhere") as caught:
        migrate_up(schema, [ONE, BROKEN])

    assert caught.value.__notes__ == ["in migration 0002_broken"]
    assert master(file) == before
    assert rows(file, "SELECT number FROM th_migrations") == [(1,)]
    assert migrate_up(schema, [ONE, TWO]) == [TWO]


def test_what_was_applied_before_a_failure_stays_applied(file: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        migrate_up(SqliteSchema(file), [ONE, BROKEN])

    assert SqliteSchema(file).version() == 1


@pytest.mark.parametrize("verb", [migrate_up, check_schema, check_compatible, pending_sql])
def test_a_schema_newer_than_the_code_is_refused_and_not_touched(verb: object, file: Path) -> None:
    migrate_up(SqliteSchema(file), [ONE, TWO])
    before = file.read_bytes()

    assert callable(verb)
    with pytest.raises(SchemaOutOfDate) as caught:
        verb(SqliteSchema(file), [ONE])

    assert str(caught.value) == "the store's schema is 2, this code needs 1: update TaskHarbor"
    assert file.read_bytes() == before


def test_a_check_of_an_older_schema_says_how_to_migrate(file: Path) -> None:
    migrate_up(SqliteSchema(file), [ONE])

    with pytest.raises(SchemaOutOfDate) as caught:
        check_schema(SqliteSchema(file), [ONE, TWO])

    assert str(caught.value) == "the store's schema is 1, this code needs 2: run 'taskharbor migrate up'"


def test_a_check_of_a_schema_that_fits_says_nothing(file: Path) -> None:
    migrate_up(SqliteSchema(file), [ONE])

    check_schema(SqliteSchema(file), [ONE])


def test_code_works_on_its_own_schema_and_on_the_one_before(file: Path) -> None:
    migrate_up(SqliteSchema(file), [ONE])

    assert check_compatible(SqliteSchema(file), [ONE]) == 1
    assert check_compatible(SqliteSchema(file), [ONE, TWO]) == 1


def test_a_schema_two_versions_behind_is_refused(file: Path) -> None:
    migrate_up(SqliteSchema(file), [ONE])
    three = Migration(number=3, name="0003_three", sql="CREATE TABLE three (a);")

    with pytest.raises(
        SchemaOutOfDate, match="the store's schema is 1, this code needs 3: run 'taskharbor migrate up'"
    ):
        check_compatible(SqliteSchema(file), [ONE, TWO, three])


def test_a_store_without_tables_is_not_compatible(file: Path) -> None:
    with pytest.raises(SchemaOutOfDate, match="the store has no TaskHarbor tables yet"):
        check_compatible(SqliteSchema(file), [ONE])


def test_the_migration_status_of_a_missing_file_creates_nothing(file: Path) -> None:
    status = migration_status(SqliteSchema(file), [ONE, TWO])

    assert (status.found, status.wanted, status.pending) == (0, 2, (ONE, TWO))
    assert list(file.parent.iterdir()) == []


def test_reading_the_migration_status_leaves_no_extra_files(file: Path) -> None:
    migrate_up(SqliteSchema(file), [ONE])

    migration_status(SqliteSchema(file), [ONE, TWO])

    assert list(file.parent.iterdir()) == [file]


def test_the_printed_script_makes_the_same_schema(tmp_path: Path) -> None:
    migrated, scripted = tmp_path / "migrated.db", tmp_path / "scripted.db"
    migrations = [*MIGRATIONS, following("extra")]
    script = pending_sql(SqliteSchema(scripted), migrations)
    migrate_up(SqliteSchema(migrated), migrations)

    with closing(sqlite3.connect(scripted)) as connection:
        connection.executescript(script)

    assert master(scripted) == master(migrated)
    for query in ("PRAGMA journal_mode", "SELECT number, name FROM th_migrations"):
        assert rows(scripted, query) == rows(migrated, query)
    assert pending_sql(SqliteSchema(scripted), migrations) == ""


def test_the_printed_script_holds_only_what_is_pending(file: Path) -> None:
    migrate_up(SqliteSchema(file), [ONE])

    script = pending_sql(SqliteSchema(file), [ONE, TWO])

    assert TWO.sql in script
    assert ONE.sql not in script


START = """
import sys
from pathlib import Path
from taskharbor.drivers.migrate import Migration, migrate_up
from taskharbor.drivers.sqlite.schema import MIGRATIONS, SqliteSchema

first = len(MIGRATIONS) + 1
more = [Migration(number=n, name=f"{n:04}_toy", sql=f"CREATE TABLE toy_{n} (a);") for n in range(first, first + 5)]
print("ready", flush=True)
sys.stdin.readline()
print(*[migration.number for migration in migrate_up(SqliteSchema(Path(sys.argv[1])), [*MIGRATIONS, *more])])
"""


def test_of_eight_processes_that_start_at_once_exactly_one_applies_each_migration(file: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", START, str(file)]
    pipe = subprocess.PIPE
    starters = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(8)]
    for starter in starters:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"

    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("go\n")
        starter.stdin.flush()
    ends = [starter.communicate(timeout=TIMEOUT_SECONDS) for starter in starters]

    wanted = list(range(1, len(MIGRATIONS) + 6))
    assert [err for _, err in ends if err] == []
    assert [starter.returncode for starter in starters] == [0] * 8
    assert sorted(int(number) for out, _ in ends for number in out.split()) == wanted
    assert rows(file, "SELECT number FROM th_migrations") == [(number,) for number in wanted]


def test_migrations_are_read_from_the_files_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = package_of(["0002_two.sql", "0001_one.sql", "notes.txt"], tmp_path, monkeypatch)

    assert load_migrations(package) == (
        Migration(number=1, name="0001_one", sql="-- 0001_one.sql"),
        Migration(number=2, name="0002_two", sql="-- 0002_two.sql"),
    )


@pytest.mark.parametrize(
    ("files", "culprit"),
    [
        (["0002_two.sql"], "0002_two.sql"),
        (["0000_zero.sql", "0001_one.sql"], "0000_zero.sql"),
        (["0001_one.sql", "0003_three.sql"], "0003_three.sql"),
        (["0001_one.sql", "0001_other.sql"], "0001_other.sql"),
        (["0001_one.sql", "0002-two.sql"], "0002-two.sql"),
        (["0001_one.sql", "2_two.sql"], "2_two.sql"),
        (["0001_o'clock.sql"], "0001_o'clock.sql"),
    ],
)
def test_a_file_that_breaks_the_numbering_is_named(
    files: list[str], culprit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = package_of(files, tmp_path, monkeypatch)

    with pytest.raises(MisnumberedMigration) as caught:
        load_migrations(package)

    assert str(caught.value).startswith(f"{culprit}: ")


def following(name: str) -> Migration:
    number = len(MIGRATIONS) + 1
    return Migration(number=number, name=f"{number:04}_{name}", sql=f"CREATE TABLE {name} (a)")


def package_of(files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"migrations_{tmp_path.name}"
    folder = tmp_path / name
    folder.mkdir()
    for file in ("__init__.py", *files):
        (folder / file).write_text("" if file == "__init__.py" else f"-- {file}")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def rows(file: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


def master(file: Path) -> list[tuple[object, ...]]:
    return rows(file, "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name")
