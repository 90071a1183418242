"""Tests on a full disk: a real file system of a few megabytes that a separate process fills."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.results import Enqueued
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.testing.conformance.subject import new_job
from tests.support.mount_namespace import call_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import NewJob

BALLAST_BYTES: Final = 1_000_000
FULL_MESSAGE: Final = "disk full; nothing of this call was stored. Free disk space and try again"


# With 2 MB, the WAL fills the disk before its first checkpoint; with 12 MB, WAL and file grow in turns.
@pytest.mark.parametrize("size", ["2m", "12m"])
def test_a_full_disk_loses_no_jobs_and_inserts_resume_once_space_is_free(tmp_path: Path, size: str) -> None:
    report = call_in(tmp_path, fill_one_by_one, mounted=f"size={size}")

    assert FULL_MESSAGE in report["error"]
    assert report["accepted"] > 20
    assert report["accepted with free space"] == 10
    assert (report["lost"], report["integrity"]) == ([], "ok")


def fill_one_by_one(folder: Path) -> dict[str, Any]:
    with closing(Disk(folder)) as disk:
        before, error = disk.fill(lambda: [new_job(payload=b"x" * 1_000)])
        disk.free_space()
        after = disk.insert([new_job() for _ in range(10)])
    report = {"error": error, "accepted": len(before), "accepted with free space": len(after)}
    return report | {"lost": disk.missing(before + after), "integrity": disk.integrity()}


def test_a_batch_that_does_not_fit_on_the_disk_stores_nothing(tmp_path: Path) -> None:
    report = call_in(tmp_path, fill_during_a_commit, mounted="size=6m")

    assert FULL_MESSAGE in report["error"]
    assert report["not stored"] == report["of"] == 5_000
    assert report["accepted with free space"] == 500
    assert (report["lost"], report["integrity"]) == ([], "ok")


def fill_during_a_commit(folder: Path) -> dict[str, Any]:
    # More than SQLite's page cache holds: it writes to the WAL before the commit, and the disk fills between two pages.
    batch = [new_job(payload=b"x" * 1_000) for _ in range(5_000)]
    with closing(Disk(folder)) as disk:
        before = disk.insert([new_job()])
        _, error = disk.fill(lambda: batch)
        refused = disk.missing([job.id for job in batch])
        disk.free_space()
        after = disk.insert(batch[:500])
    report = {"error": error, "of": len(batch), "not stored": len(refused), "accepted with free space": len(after)}
    return report | {"lost": disk.missing(before + after), "integrity": disk.integrity()}


class Disk:
    """A driver on a small disk that also holds a ballast file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "jobs.db"
        self._ballast = folder / "ballast"
        self._ballast.write_bytes(b"x" * BALLAST_BYTES)
        self._driver = SqliteDriver(self._file)

    def insert(self, jobs: Sequence[NewJob]) -> list[JobId]:
        return [each.id for each in self._driver.insert(jobs) if isinstance(each, Enqueued)]

    def fill(self, batches: Callable[[], Sequence[NewJob]]) -> tuple[list[JobId], str]:
        """Insert until the disk is full, and return the accepted jobs and the error message."""
        accepted: list[JobId] = []
        try:
            while True:
                accepted += self.insert(batches())
        except StoreUnavailable as full:
            return accepted, str(full)

    def free_space(self) -> None:
        self._ballast.unlink()

    def close(self) -> None:
        self._driver.close()

    def missing(self, job_ids: Sequence[JobId]) -> list[str]:
        """Reopen the file, and return which of these jobs are not in it."""
        with closing(SqliteDriver(self._file)) as driver:
            kept = driver.inspector.get(job_ids)
        return [str(job_id) for job_id in job_ids if job_id not in kept]

    def integrity(self) -> object:
        with closing(sqlite3.connect(self._file)) as db:
            return db.execute("PRAGMA integrity_check").fetchone()[0]
