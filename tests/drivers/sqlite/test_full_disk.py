"""A disk that is full: a real one, of a few megabytes, that a process of its own fills."""

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

BALLAST: Final = 1_000_000
FULL: Final = "the disk is full; nothing of this call was stored. Make room and try again"


# With 2 MB the log is full before it is ever copied into the file; with 12 MB both grow by turns.
@pytest.mark.parametrize("size", ["2m", "12m"])
def test_on_a_full_disk_nothing_is_lost_and_when_there_is_room_again_work_goes_on(tmp_path: Path, size: str) -> None:
    report = call_in(tmp_path, fill_one_by_one, mounted=f"size={size}")

    assert FULL in report["error"]
    assert report["accepted"] > 20
    assert report["accepted after there was room"] == 10
    assert (report["lost"], report["integrity"]) == ([], "ok")


def fill_one_by_one(folder: Path) -> dict[str, Any]:
    with closing(Disk(folder)) as disk:
        before, error = disk.fill(lambda: [new_job(payload=b"x" * 1_000)])
        disk.make_room()
        after = disk.insert([new_job() for _ in range(10)])
    told = {"error": error, "accepted": len(before), "accepted after there was room": len(after)}
    return told | {"lost": disk.missing(before + after), "integrity": disk.integrity()}


def test_of_a_batch_for_which_there_is_no_room_nothing_is_stored_until_it_is_repeated(tmp_path: Path) -> None:
    report = call_in(tmp_path, fill_in_the_middle_of_a_commit, mounted="size=6m")

    assert FULL in report["error"]
    assert report["not stored"] == report["of"] == 5_000
    assert report["accepted after there was room"] == 500
    assert (report["lost"], report["integrity"]) == ([], "ok")


def fill_in_the_middle_of_a_commit(folder: Path) -> dict[str, Any]:
    # More than SQLite keeps in memory: it writes to the log before it commits, and runs out between two pages.
    batch = [new_job(payload=b"x" * 1_000) for _ in range(5_000)]
    with closing(Disk(folder)) as disk:
        before = disk.insert([new_job()])
        _, error = disk.fill(lambda: batch)
        refused = disk.missing([job.id for job in batch])
        disk.make_room()
        after = disk.insert(batch[:500])
    told = {"error": error, "of": len(batch), "not stored": len(refused), "accepted after there was room": len(after)}
    return told | {"lost": disk.missing(before + after), "integrity": disk.integrity()}


class Disk:
    """A driver on a small disk, part of which is taken by other things."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "jobs.db"
        self._ballast = folder / "ballast"
        self._ballast.write_bytes(b"x" * BALLAST)
        self._driver = SqliteDriver(self._file)

    def insert(self, jobs: Sequence[NewJob]) -> list[JobId]:
        return [each.id for each in self._driver.insert(jobs) if isinstance(each, Enqueued)]

    def fill(self, batches: Callable[[], Sequence[NewJob]]) -> tuple[list[JobId], str]:
        """Insert until there is no room; return what was accepted, and how the end was told."""
        accepted: list[JobId] = []
        try:
            while True:
                accepted += self.insert(batches())
        except StoreUnavailable as full:
            return accepted, str(full)

    def make_room(self) -> None:
        self._ballast.unlink()

    def close(self) -> None:
        self._driver.close()

    def missing(self, job_ids: Sequence[JobId]) -> list[str]:
        """Open the file anew, and return which of these are not in it."""
        with closing(SqliteDriver(self._file)) as driver:
            kept = driver.inspector.get(job_ids)
        return [str(job_id) for job_id in job_ids if job_id not in kept]

    def integrity(self) -> object:
        with closing(sqlite3.connect(self._file)) as db:
            return db.execute("PRAGMA integrity_check").fetchone()[0]
