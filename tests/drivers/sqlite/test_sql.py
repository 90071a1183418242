"""Tests of conditions in SQLite statements that only raw SQL, or a concurrent writer, can reach."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from taskharbor.core.results import Sent, Unsent
from taskharbor.core.states import Status
from taskharbor.drivers.sqlite.inspector import SqliteInspector
from taskharbor.testing.conformance.subject import RESEND
from tests.conformance.test_drivers import sqlite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.testing.conformance.subject import Subject

END: Final = "UPDATE th_jobs SET status = 'CANCELED', completed_at = 1 WHERE id = ?"
"""What an operator may do by hand: it leaves all other columns unchanged."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def subject(file: Path) -> Iterator[Subject]:
    made = sqlite(file.parent)
    yield made
    made.driver.close()


def run(file: Path, statement: str, *values: Any) -> list[Any]:
    """Run one statement on a separate connection."""
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        return db.execute(statement, values).fetchall()


MAX_STEPS: Final = 100_000
"""Instructions of SQLite's virtual machine: a hundred times what a query over a few jobs takes."""


def test_the_recursive_query_over_all_queues_ends(subject: Subject, file: Path) -> None:
    for queue in ("default", "mail"):
        for priority in (0, 1):
            subject.insert(queue=queue, priority=priority)

    with closing(sqlite3.connect(file)) as db:
        db.set_progress_handler(lambda: True, MAX_STEPS)
        rows = db.execute(SqliteInspector._QUEUES, {"now": 0}).fetchall()  # noqa: SLF001  the method sets no limit

    assert [row[0] for row in rows] == ["default", "mail"]


@pytest.mark.parametrize("reply", [Unsent, lambda dispatch: Sent(dispatch, RESEND)], ids=["unsent", "sent"])
def test_a_reply_changes_nothing_of_a_job_that_raw_sql_ended(reply: Any, subject: Subject, file: Path) -> None:
    job_id = subject.insert()
    [dispatch] = subject.dispatch()
    run(file, END, job_id.bytes)
    before = subject.everything(job_id)

    assert subject.driver.record_dispatch([reply(dispatch)]) == [False]
    assert subject.everything(job_id) == before


def test_a_job_that_raw_sql_ended_does_not_count_as_unclaimed(subject: Subject, file: Path) -> None:
    ended = subject.insert()
    subject.dispatch(unclaimed=1)
    run(file, END, ended.bytes)
    waiting = subject.insert()

    assert [dispatch.job_id for dispatch in subject.dispatch(unclaimed=1)] == [waiting]


def test_a_setting_recorded_by_another_process_after_the_read_is_kept(
    subject: Subject, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = "INSERT INTO th_settings (name, value) VALUES (?, 'aes')"
    change_before_the_write(record, "codec", subject, file, monkeypatch)

    assert subject.driver.remember("codec", "json") == "aes"
    assert subject.driver.inspector.settings() == {"codec": "aes"}


@pytest.mark.parametrize(
    "change",
    [
        END,
        "UPDATE th_jobs SET max_attempts = attempt_count + 1 WHERE id = ?",
    ],
    ids=["ended", "given attempts"],
)
def test_an_exhausted_job_that_changed_after_the_read_is_not_buried(
    change: str, subject: Subject, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = subject.insert()
    run(file, "UPDATE th_jobs SET attempt_count = max_attempts WHERE id = ?", job_id.bytes)
    change_before_the_write(change, job_id.bytes, subject, file, monkeypatch)

    assert subject.driver.maintenance.bury(limit=10) == []
    assert subject.job(job_id).status is not Status.DEAD
    assert subject.outbox(job_id) == []


def change_before_the_write(
    change: str, value: Any, subject: Subject, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let another connection run *change* after the driver has read, and before it writes."""
    connections: Any = cast("Any", subject.driver.maintenance)._connections  # noqa: SLF001  no method waits between read and write
    begin = connections._begin  # noqa: SLF001  as above

    def changed() -> Any:
        run(file, change, value)
        return begin()

    monkeypatch.setattr(connections, "_begin", changed)
