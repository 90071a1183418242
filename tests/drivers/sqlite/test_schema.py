"""Tests of the constraints of a SQLite file against raw SQL, and of the errors of failed migrations."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.states import FINAL, TRANSITIONS, Event, Status
from taskharbor.drivers.migrate import migrate_up
from taskharbor.drivers.sqlite.schema import MIGRATIONS, SqliteSchema, statements

if TYPE_CHECKING:
    from collections.abc import Iterator

JOB: Final = b"j" * 16
UNPRIVILEGED_UID: Final = 65534

# A reschedule keeps the status of a waiting job, so not every source may go to every target.
KNOWN_MOVES: Final = {
    (source, target)
    for event, transition in TRANSITIONS.items()
    for source, target in product(transition.sources, transition.targets)
    if event is not Event.RESCHEDULE or source == target
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def db(file: Path) -> Iterator[sqlite3.Connection]:
    migrate_up(SqliteSchema(file), MIGRATIONS)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


@pytest.mark.parametrize(("source", "target"), [*product(Status, Status)])
def test_raw_sql_makes_exactly_the_moves_of_the_transition_table(
    source: Status, target: Status, db: sqlite3.Connection
) -> None:
    insert(db)
    lead_to(db, source)

    if (source, target) in KNOWN_MOVES or source == target:
        move(db, target)
        assert status(db) == target
    else:
        with pytest.raises(sqlite3.IntegrityError, match="the transition table does not know this move"):
            move(db, target)
        assert status(db) == source


@pytest.mark.parametrize("beginning", [status for status in Status if status is not Status.PENDING])
def test_raw_sql_cannot_insert_a_job_that_is_not_pending(beginning: Status, db: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="a job begins as PENDING"):
        insert(db, **columns_of(beginning))


@pytest.mark.parametrize(
    ("status_", "change"),
    [
        (Status.PENDING, "lease_token = x'00', lease_expires_at = 1"),
        (Status.SUCCEEDED, "lease_token = x'00', lease_expires_at = 1"),
        (Status.PENDING, "lease_expires_at = 1"),
        (Status.PROCESSING, "lease_token = NULL"),
        (Status.PROCESSING, "lease_expires_at = NULL"),
        (Status.PROCESSING, "lease_token = NULL, lease_expires_at = NULL"),
        (Status.PENDING, "status = 'PROCESSING'"),
        (Status.PROCESSING, "status = 'PENDING'"),
    ],
)
def test_a_lease_and_processing_come_and_go_together(status_: Status, change: str, db: sqlite3.Connection) -> None:
    insert(db)
    lead_to(db, status_)

    with pytest.raises(sqlite3.IntegrityError, match="th_jobs_lease"):
        db.execute(f"UPDATE th_jobs SET {change}")


@pytest.mark.parametrize("left_out", ["dead_at", "dead_reason"])
def test_a_dead_job_has_a_time_and_a_reason_of_death(left_out: str, db: sqlite3.Connection) -> None:
    insert(db)

    with pytest.raises(sqlite3.IntegrityError, match="th_jobs_dead"):
        update(db, **{**columns_of(Status.DEAD), left_out: None})


def test_a_job_that_lives_has_no_time_of_death(db: sqlite3.Connection) -> None:
    insert(db)

    with pytest.raises(sqlite3.IntegrityError, match="th_jobs_dead"):
        update(db, dead_at=1, dead_reason="none")


@pytest.mark.parametrize("final", sorted(FINAL))
def test_a_final_job_has_the_time_of_its_end(final: Status, db: sqlite3.Connection) -> None:
    insert(db)
    move(db, Status.PROCESSING)

    with pytest.raises(sqlite3.IntegrityError, match="th_jobs_completed"):
        update(db, **{**columns_of(final), "completed_at": None})


def test_a_waiting_job_has_no_time_of_its_end(db: sqlite3.Connection) -> None:
    insert(db)

    with pytest.raises(sqlite3.IntegrityError, match="th_jobs_completed"):
        update(db, completed_at=1)


def test_an_unknown_status_is_refused(db: sqlite3.Connection) -> None:
    insert(db)
    move(db, Status.PROCESSING)

    with pytest.raises(sqlite3.IntegrityError, match="th_jobs_status"):
        update(db, status="PAUSED", lease_token=None, lease_expires_at=None)


@pytest.mark.parametrize("metadata", ["", "{", "{'a': 1}", "tags"])
def test_metadata_is_json(metadata: str, db: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="json_valid"):
        insert(db, metadata=metadata)


@pytest.mark.parametrize(
    "change", [{"timeout": 0}, {"attempt_count": -1}, {"max_attempts": 0}, {"id": b"short"}], ids=repr
)
def test_a_number_or_an_id_out_of_bounds_is_refused(change: dict[str, object], db: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
        insert(db, **change)


def test_a_script_is_split_where_its_statements_end() -> None:
    table = "CREATE TABLE a (b TEXT DEFAULT ';');"
    trigger = """
    -- first; then
    CREATE TRIGGER t AFTER INSERT ON a WHEN NEW.b <> 'END;'
    BEGIN
        UPDATE a SET b = CASE b WHEN ';' THEN 'x' ELSE b END;
        DELETE FROM a; /* all; of them */
    END;"""
    index = "\nCREATE INDEX i ON a (b);"

    assert list(statements(table + trigger + index + "\n")) == [table, trigger, index]


@pytest.mark.parametrize("rest", ["SELECT 1", "-- the end; really", "SELECT ';", "CREATE TRIGGER t BEGIN SELECT 1;"])
def test_text_after_the_last_statement_is_kept(rest: str) -> None:
    assert list(statements(f"SELECT 0;{rest}")) == ["SELECT 0;", rest]


def test_a_trigger_of_a_migration_works_as_written(db: sqlite3.Connection) -> None:
    insert(db)
    move(db, Status.DEAD)

    assert db.execute("SELECT minute, queue, status, count FROM th_ended").fetchall() == [(0, "default", "DEAD", 1)]
    assert db.execute("SELECT job_id, error FROM th_outbox").fetchall() == [(JOB, "exhausted")]


@pytest.mark.parametrize("column", ["dead_at", "completed_at"])
def test_a_death_whose_time_is_corrected_is_counted_once_and_has_one_event(column: str, db: sqlite3.Connection) -> None:
    insert(db)
    move(db, Status.DEAD)

    update(db, **{column: 2})

    assert db.execute("SELECT sum(count) FROM th_ended").fetchall() == [(1,)]
    assert db.execute("SELECT sum(count) FROM th_dead_groups").fetchall() == [(1,)]
    assert db.execute("SELECT sum(count) FROM th_dead_hours").fetchall() == [(1,)]
    assert db.execute("SELECT count(*) FROM th_outbox").fetchall() == [(1,)]


def test_the_file_is_left_in_wal_mode(db: sqlite3.Connection) -> None:
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_tables_can_join_those_of_an_application(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE orders (id)")

    assert migrate_up(SqliteSchema(file), MIGRATIONS) == list(MIGRATIONS)


def test_the_user_version_of_another_program_is_ignored_and_kept(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 7")

    assert migrate_up(SqliteSchema(file), MIGRATIONS) == list(MIGRATIONS)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (7,)


def test_a_job_cannot_be_replaced_by_a_new_one(db: sqlite3.Connection) -> None:
    insert = "INSERT OR REPLACE INTO th_jobs (id, type, queue, priority, payload, status, scheduled_for, created_at, "
    insert += "attempt_count, max_attempts) VALUES (zeroblob(16), 't', 'q', 0, x'', 'PENDING', 0, 0, 0, 1)"
    db.execute(insert)

    with pytest.raises(sqlite3.IntegrityError, match="and once"):
        db.execute(insert)


def test_a_file_that_is_no_database_is_left_as_it_is(file: Path) -> None:
    file.write_text("Dear diary, nothing happened today.")

    with pytest.raises(StoreUnavailable, match="not a SQLite database"):
        migrate_up(SqliteSchema(file), MIGRATIONS)

    assert file.read_text() == "Dear diary, nothing happened today."


def test_a_missing_directory_is_reported_and_not_created(tmp_path: Path) -> None:
    file = tmp_path / "none" / "jobs.db"

    with pytest.raises(StoreUnavailable, match=r"none/jobs\.db: cannot be opened; check that its directory exists"):
        SqliteSchema(file).version()
    with pytest.raises(StoreUnavailable, match=r"none/jobs\.db: cannot be opened; check that its directory exists"):
        SqliteSchema(file).apply(MIGRATIONS[0])

    assert not file.parent.exists()


def test_a_file_that_another_holds_is_waited_for_until_the_deadline(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("CREATE TABLE orders (id)")
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(
            StoreUnavailable,
            match="another process, or a handler's own write transaction, has held the write lock for too long",
        ):
            migrate_up(SqliteSchema(file, deadline=timedelta(milliseconds=20)), MIGRATIONS)


def test_a_read_only_file_can_be_inspected_but_not_migrated() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "jobs.db")
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TABLE orders (id)")
        file.chmod(0o444)
        Path(folder).chmod(0o755)

        with as_unprivileged_user():
            found = SqliteSchema(file).version()
            with pytest.raises(StoreUnavailable, match="read-only for this user"):
                migrate_up(SqliteSchema(file), MIGRATIONS)

    assert found == 0


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Drop root privileges temporarily: root may write to read-only files."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(UNPRIVILEGED_UID)
    try:
        yield
    finally:
        os.seteuid(before)


def insert(db: sqlite3.Connection, **columns: object) -> None:
    row = {
        "id": JOB,
        "type": "greet",
        "queue": "default",
        "priority": 0,
        "payload": b"",
        "status": "PENDING",
        "scheduled_for": 0,
        "created_at": 0,
        "attempt_count": 0,
        "max_attempts": 1,
        **columns,
    }
    names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    db.execute(f"INSERT INTO th_jobs ({names}) VALUES ({marks})", row)


def update(db: sqlite3.Connection, **columns: object) -> None:
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    db.execute(f"UPDATE th_jobs SET {changes}", columns)


def move(db: sqlite3.Connection, target: Status) -> None:
    update(db, **columns_of(target))


def lead_to(db: sqlite3.Connection, target: Status) -> None:
    """Bring a PENDING job to *target* by legal transitions."""
    if target is not Status.PENDING:
        move(db, Status.PROCESSING)
        move(db, target)


def columns_of(target: Status) -> dict[str, object]:
    """Return the columns that the constraints require for *target*."""
    is_held, is_dead = target is Status.PROCESSING, target is Status.DEAD
    return {
        "status": target.value,
        "lease_token": b"t" * 16 if is_held else None,
        "lease_expires_at": 1 if is_held else None,
        "completed_at": 1 if target in FINAL else None,
        "dead_at": 1 if is_dead else None,
        "dead_reason": "exhausted" if is_dead else None,
    }


def status(db: sqlite3.Connection) -> str:
    found: str = db.execute("SELECT status FROM th_jobs").fetchone()[0]
    return found
