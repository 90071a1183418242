"""Tests that an audit finds each kind of corrupt row, and nothing in a healthy store."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from taskharbor.audit import Position
from taskharbor.core.audit import INVARIANTS, AuditPart
from taskharbor.core.errors import TaskHarborError
from taskharbor.core.model import Schedule
from taskharbor.core.outcome import Outcome
from taskharbor.core.schedule_runs import ScheduleRun
from taskharbor.core.states import Status
from taskharbor.drivers.audit_rules import RULES
from taskharbor.testing.conformance.subject import BOOM, LEASE, TEN_YEARS, Subject
from tests.conformance import test_drivers
from tests.support.audit import audit
from tests.support.postgres import database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.operator import Auditor

ONLY_POSTGRES: Final = pytest.mark.parametrize("store", ["postgres"], indirect=True)
LONG_AGO: Final = "LONG AGO"
NIGHTLY: Final = Schedule(
    name="nightly", cron="0 2 * * *", timezone="UTC", type="greet", queue="default", payload=b"{}"
)
RUN: Final = "INSERT INTO th_schedule_runs (schedule, fire_time, job_id, at)"
PAUSE: Final = "INSERT INTO th_queues (name, paused_at, paused_by)"
ATTEMPT: Final = "INSERT INTO th_attempts (job_id, token, life, attempt, ended_at, event, status, outcome)"
SECOND_DEATH: Final = f"{ATTEMPT} SELECT id, id, 1, 1, created_at, 'fail', 'DEAD', '' FROM th_jobs WHERE id = {{id}}"
EVENT: Final = """
    INSERT INTO th_outbox (job_id, life, type, queue, attempt_count, max_attempts, error, dead_at, next_at)
    SELECT id, life, type, queue, 1, 1, 'boom', created_at, created_at FROM th_jobs WHERE id = {id}"""


@dataclass(frozen=True)
class Store:
    """A store, and a connection of its own that ignores constraints and triggers."""

    subject: Subject
    db: Any
    is_sqlite: bool

    @property
    def auditor(self) -> Auditor:
        auditor: Auditor = self.subject.driver.auditor  # type: ignore[attr-defined]
        return auditor

    def corrupt(self, statement: str, job_id: JobId) -> None:
        statement = statement.replace(LONG_AGO, "1" if self.is_sqlite else "'2020-01-01'::timestamptz")
        literal = f"x'{job_id.hex}'" if self.is_sqlite else f"'{job_id}'::uuid"
        if self.is_sqlite:
            for (name,) in self.db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                self.db.execute(f"DROP TRIGGER {name}")
        self.db.execute(statement.format(id=literal))
        self.db.commit()

    def found(self, *, page_rows: int = 100) -> set[tuple[int, JobId]]:
        return {(each.invariant, each.job_id) for each in audit(self.subject.driver, page_rows=page_rows)}

    def details(self) -> set[tuple[str, JobId]]:
        return {(each.detail, each.job_id) for each in audit(self.subject.driver)}


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        subject = test_drivers.sqlite(tmp_path)
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
            db.execute("PRAGMA ignore_check_constraints = ON")
            yield Store(subject, db, is_sqlite=True)
    else:
        with database() as url, psycopg.connect(url) as db_:
            subject = test_drivers.postgres(url)
            db_.execute("SET session_replication_role = replica")
            db_.execute("ALTER TABLE th_jobs DROP CONSTRAINT th_jobs_lease")
            db_.commit()
            yield Store(subject, db_, is_sqlite=False)
    subject.driver.close()


def test_a_healthy_store_has_no_violation(store: Store) -> None:
    bring_all_states(store.subject)

    assert store.found() == set()


CORRUPTIONS: Final = [
    (5, Status.SUCCEEDED, "UPDATE th_jobs SET attempt_count = max_attempts + 1 WHERE id = {id}"),
    (6, Status.FAILED, "UPDATE th_attempts SET status = 'SUCCEEDED' WHERE job_id = {id}"),
    (7, Status.PENDING, "UPDATE th_jobs SET life = 3 WHERE id = {id}"),
    (7, Status.FAILED, "UPDATE th_attempts SET life = 2 WHERE job_id = {id}"),
    (8, Status.DEAD,
     f"{ATTEMPT} SELECT id, id, life, 1, created_at, 'fail', 'DEAD', '' FROM th_jobs WHERE id = {{id}}"),
    (11, Status.DEAD, "DELETE FROM th_outbox WHERE job_id = {id}"),
    (11, Status.SUCCEEDED, EVENT),
    (12, Status.PROCESSING, "UPDATE th_jobs SET scheduled_for = lease_expires_at WHERE id = {id}"),
    (12, Status.PROCESSING, "UPDATE th_jobs SET cancel_requested_at = created_at WHERE id = {id}"),
    (13, Status.PROCESSING, "UPDATE th_jobs SET lease_token = NULL WHERE id = {id}"),
    (13, Status.PROCESSING,
     f"{ATTEMPT} SELECT id, lease_token, life, 1, created_at, 'retry', 'FAILED', '' FROM th_jobs WHERE id = {{id}}"),
    (15, Status.PENDING, "DELETE FROM th_keys WHERE job_id = {id}"),
    (15, Status.PENDING, "UPDATE th_jobs SET idempotency_key = NULL WHERE id = {id}"),
    (12, Status.PROCESSING, f"{PAUSE} SELECT queue, {LONG_AGO}, 'ada' FROM th_jobs WHERE id = {{id}}"),
    (17, Status.PENDING, "UPDATE th_jobs SET releases = 11 WHERE id = {id}"),
    (21, Status.PENDING, "UPDATE th_jobs SET attempt_count = max_attempts WHERE id = {id}"),
    (24, Status.FAILED, "UPDATE th_jobs SET cancel_requested_at = created_at WHERE id = {id}"),
]  # fmt: skip


@pytest.mark.parametrize(("invariant", "status", "corruption"), CORRUPTIONS)
def test_each_kind_of_corrupt_row_is_found(store: Store, invariant: int, status: Status, corruption: str) -> None:
    job_id = store.subject.bring(status, idempotency_key="key")
    assert store.found() == set()

    store.corrupt(corruption, job_id)

    assert store.found() == {(invariant, job_id)}


@pytest.mark.parametrize(("status", "table"), [(Status.FAILED, "th_attempts"), (Status.DEAD, "th_outbox")])
def test_rows_of_a_job_that_is_missing_are_found(store: Store, status: Status, table: str) -> None:
    job_id = store.subject.bring(status)
    for other in {"th_attempts", "th_outbox"} - {table}:
        store.corrupt(f"DELETE FROM {other} WHERE job_id = {{id}}", job_id)

    store.corrupt("DELETE FROM th_jobs WHERE id = {id}", job_id)

    assert store.found() == {(1, job_id)}


def test_a_key_of_a_job_that_is_missing_is_found(store: Store) -> None:
    job_id = store.subject.insert(idempotency_key="key")

    store.corrupt("DELETE FROM th_jobs WHERE id = {id}", job_id)

    assert store.found() == {(15, job_id)}


NOT_HELD: Final = "its idempotency key is not held by it"
NOT_ITS_OWN: Final = "it holds an idempotency key that is not its own"


def test_a_key_in_another_queue_is_not_held_and_not_its_own(store: Store) -> None:
    job_id = store.subject.insert(idempotency_key="key")

    store.corrupt("UPDATE th_keys SET queue = 'elsewhere' WHERE job_id = {id}", job_id)

    assert store.details() == {(NOT_HELD, job_id), (NOT_ITS_OWN, job_id)}


def test_a_key_of_another_job_is_not_held(store: Store) -> None:
    job_id, other = store.subject.insert(idempotency_key="key"), store.subject.insert()

    store.corrupt("UPDATE th_keys SET job_id = (SELECT id FROM th_jobs WHERE id <> {id})", job_id)

    assert store.details() == {(NOT_HELD, job_id), (NOT_ITS_OWN, other)}


@pytest.mark.parametrize("life", [1, 2])
def test_an_event_of_another_life_is_not_that_of_this_one(store: Store, life: int) -> None:
    job_id = store.subject.bring(Status.DEAD)
    store.subject.requeue(job_id)
    store.subject.settle(store.subject.take(), Outcome.fail("boom"))
    assert store.found() == set()

    store.corrupt(f"DELETE FROM th_outbox WHERE job_id = {{id}} AND life = {life}", job_id)

    assert store.found() == {(11, job_id)}


def test_an_end_of_the_current_life_is_reported_once(store: Store) -> None:
    job_id = store.subject.bring(Status.DEAD)

    store.corrupt(SECOND_DEATH, job_id)
    store.corrupt("DELETE FROM th_outbox WHERE job_id = {id}", job_id)

    found = {("its life has a final event too many", job_id), ("it is DEAD without a dead-letter event", job_id)}
    assert store.details() == found


@pytest.mark.parametrize(
    ("invariant", "corruption"),
    [
        (8, SECOND_DEATH),
        (11, "DELETE FROM th_outbox WHERE job_id = {id}"),
    ],
)
def test_an_end_of_an_earlier_life_is_checked_too(store: Store, invariant: int, corruption: str) -> None:
    job_id = store.subject.bring(Status.FAILED)
    store.subject.settle(store.subject.take(), Outcome.fail("boom"))
    store.subject.requeue(job_id)
    assert store.found() == set()

    store.corrupt(corruption, job_id)

    assert store.found() == {(invariant, job_id)}


def test_a_running_job_that_was_retried_is_no_violation(store: Store) -> None:
    store.subject.insert()
    store.subject.settle(store.subject.take(), Outcome.retry(after=LEASE))
    store.subject.advance(LEASE)
    store.subject.take()

    assert store.found() == set()


def test_two_jobs_of_one_fire_time_are_found(store: Store) -> None:
    jobs = [store.subject.insert(delay=number * LEASE) for number in range(3)]
    for name, job_id in zip(("nightly", "nightly", "weekly"), jobs, strict=True):
        store.corrupt(f"{RUN} SELECT '{name}', scheduled_for, id, scheduled_for FROM th_jobs WHERE id = {{id}}", job_id)
    assert store.found() == set()  # two fire times, and two schedules

    store.corrupt("UPDATE th_schedule_runs SET fire_time = (SELECT min(at) FROM th_schedule_runs)", jobs[0])
    assert store.found() == {(16, jobs[0]), (16, jobs[1])}


@ONLY_POSTGRES  # SQLite has one table with a primary key
def test_an_id_in_two_partitions_is_found_on_pages_of_any_size(store: Store) -> None:
    first, last = store.subject.insert(), store.subject.insert()
    same = "id, type, queue, priority, scheduled_for, created_at, max_attempts, payload"
    store.corrupt(
        f"""INSERT INTO th_jobs ({same}, status, completed_at)
            SELECT {same}, 'CANCELED', created_at FROM th_jobs WHERE id = {{id}}""",
        first,
    )

    for page_rows in (1, 2, 100):
        assert store.found(page_rows=page_rows) == {(23, first)}, page_rows
    assert last not in {job_id for _, job_id in store.found()}


def test_jobs_that_ran_when_their_queue_was_paused_are_no_violation(store: Store) -> None:
    store.subject.bring(Status.PROCESSING)
    store.subject.driver.control.pause(["default"], by="ada")
    store.subject.advance(LEASE / 2)

    assert store.found() == set()


def test_every_rule_is_covered_by_a_corruption() -> None:
    tested = {invariant for invariant, _, _ in CORRUPTIONS} | {1, 16, 23}

    assert tested == {rule.invariant for rules in RULES.values() for rule in rules} == set(INVARIANTS)


@pytest.mark.parametrize("page_rows", [1, 2, 3])
def test_pages_of_any_size_check_every_row_once(store: Store, page_rows: int) -> None:
    bring_all_states(store.subject)
    whole = {part: store.auditor.audit(part, limit=1_000).rows for part in AuditPart}
    assert all(whole.values())

    checked = dict.fromkeys(AuditPart, 0)
    position: Position | None = Position()
    while position is not None:
        page = store.auditor.audit(position.part, limit=page_rows, after=position.after)
        assert page.rows <= page_rows + 2  # one job has three attempts
        checked[position.part] += page.rows
        position = position.next(page)

    assert checked == whole


def test_a_day_that_retention_removes_is_no_violation(store: Store) -> None:
    subject, maintenance = store.subject, store.subject.driver.maintenance
    maintenance.roll_up(keep=TEN_YEARS)  # creates the partitions of these days
    job_id = subject.bring(Status.FAILED, idempotency_key="key")
    subject.settle(subject.take(), Outcome.ack())
    subject.advance(timedelta(days=3))

    for _ in range(20):
        maintenance.prune(older_than=LEASE, limit=1, within=timedelta(0))
        assert store.found() == set()

    assert subject.driver.inspector.get([job_id]) == {}
    assert subject.attempts(job_id) == []


@ONLY_POSTGRES  # SQLite removes a job with everything that refers to it
def test_rows_of_jobs_in_a_detached_day_are_no_violation(store: Store) -> None:
    job_id = store.subject.bring(Status.FAILED, idempotency_key="key")
    store.corrupt("DELETE FROM th_jobs WHERE id = {id}", job_id)
    assert store.found() == {(1, job_id), (15, job_id)}

    store.corrupt("INSERT INTO th_pruning (leaf, is_detached) VALUES ('th_jobs_finished_20300101', true)", job_id)

    assert store.found() == set()


def test_an_audit_needs_only_the_right_to_read() -> None:
    role = f"auditor_{os.getpid()}"
    with database() as url, psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE ROLE {role} LOGIN")
        try:
            db.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
            subject = test_drivers.postgres(make_conninfo(url, user=role))
            with closing(subject.driver):
                assert audit(subject.driver) == []
                with pytest.raises(TaskHarborError):
                    subject.insert()
        finally:
            db.execute(f"DROP OWNED BY {role}")
            db.execute(f"DROP ROLE {role}")


def bring_all_states(subject: Subject) -> None:
    """Store a job in every state, one of them with two lives and three attempts, one with a key, and one of a run."""
    subject.driver.control.put_schedules([NIGHTLY])
    run = ScheduleRun(schedule="nightly", fire_time=subject.clock.now(), job_id=subject.bring(Status.SUCCEEDED))
    subject.driver.maintenance.record_runs([run])
    subject.bring(Status.CANCELED)
    subject.requeue(subject.bring(Status.DEAD))
    subject.settle(subject.take(), Outcome.retry(after=LEASE, failure=BOOM))
    for status in (Status.DEAD, Status.PROCESSING, Status.ENQUEUED, Status.PENDING):
        subject.bring(status, idempotency_key=status.value)
