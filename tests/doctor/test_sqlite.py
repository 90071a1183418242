"""Each check of a SQLite file reports a problem until it is solved."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from taskharbor.doctor import Finding, Level, sqlite
from taskharbor.doctor.examination import examine
from taskharbor.doctor.sqlite import check_file, file_system_of
from taskharbor.drivers.sqlite import SqliteDriver
from tests.support import fuse, mount_namespace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "jobs.db"
    SqliteDriver(file).close()
    return file


def problems(file: Path, check: str) -> list[Finding]:
    return [each for each in check_file(file) if each.check == check and each.level is not Level.OK]


def test_a_file_in_order_has_no_problem(file: Path) -> None:
    assert {each.level for each in check_file(file)} == {Level.OK}


def test_a_path_with_special_characters_is_that_of_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "c#?%41"
    folder.mkdir()
    SqliteDriver(folder / "a#?%41.db").close()

    assert {each.level for each in check_file(folder / "a#?%41.db")} == {Level.OK}
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]  # a wrong path would create a file


def test_a_file_that_cannot_be_written_is_reported_until_it_can(tmp_path: Path) -> None:
    levels = mount_namespace.call_in(tmp_path, check_read_only, mounted="size=8m")

    assert levels == ["ok", "fail", "ok"]


def check_read_only(folder: Path) -> list[str]:
    """Return the level of the check before, while and after the file system is read-only."""
    file = folder / "jobs.db"
    SqliteDriver(file).close()
    levels = []
    for mode in ("rw", "ro", "rw"):
        subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)
        [level] = {each.level for each in check_file(file) if each.check == "file"}
        levels.append(level.value)
    return levels


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("index", "th_jobs_waiting"),
        ("trigger", "th_jobs_death"),
        ("trigger", "th_jobs_transition"),
        ("table", "th_audit"),
    ],
)
def test_a_missing_table_index_or_trigger_is_reported_until_its_remedy_is_run(file: Path, kind: str, name: str) -> None:
    with closing(sqlite3.connect(file)) as db:
        [(before,)] = db.execute("SELECT sql FROM sqlite_master WHERE name = ?", [name])
        db.execute(f"DROP {kind} {name}")
        found, *others = problems(file, "tables")  # a table takes its indexes along
        assert (found.level, found.text) == (Level.FAIL, f"{kind} {name} is missing")

        for each in (found, *others):
            db.executescript(each.remedy)

        assert problems(file, "tables") == []
        assert db.execute("SELECT sql FROM sqlite_master WHERE name = ?", [name]).fetchall() == [(before,)]


def test_a_held_write_lock_is_reported_with_its_process(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOCK_SECONDS", 0.0)
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        [found] = problems(file, "locks")
        assert found.level is Level.FAIL
        assert found.text.startswith(f"process {os.getpid()} (")
        assert f"has held the write lock of {file}" in found.text

        monkeypatch.setattr(sqlite, "LOCKS", "none")
        [unnamed] = problems(file, "locks")
        assert unnamed.text.startswith("another program has held ")

        db.execute("ROLLBACK")
        assert problems(file, "locks") == []


def test_a_file_that_another_program_uses_alone_is_said_to_be_locked(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOCK_SECONDS", 0.0)
    monkeypatch.setattr(sqlite, "READ_SECONDS", 0.0)
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("DELETE FROM th_audit")

        [found] = problems(file, "journal mode")
        assert found.remedy.startswith("close the program that has locked the file")


def test_another_journal_mode_is_reported_until_a_driver_opens_the_file(file: Path) -> None:
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    [found] = problems(file, "journal mode")
    assert found.text.startswith("the journal mode is delete")

    with closing(SqliteDriver(file)) as driver:
        driver.remember("one", "1")
    assert problems(file, "journal mode") == []


def test_a_large_write_ahead_log_is_reported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LARGE_LOG", 1_000)
    with closing(SqliteDriver(file)) as driver, closing(sqlite3.connect(file)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM th_jobs").fetchone()
        driver.remember("one", "1")

        [found] = problems(file, "write-ahead log")
        assert "a reader that never ends its transaction prevents checkpoints" in found.text

    assert problems(file, "write-ahead log") == []


def test_a_network_file_system_is_reported_until_the_file_is_moved(tmp_path: Path) -> None:
    if not os.access(fuse.DEVICE, os.R_OK | os.W_OK):
        pytest.skip(f"NOT RUN: {fuse.DEVICE} cannot be used")

    found = mount_namespace.call_in(tmp_path, check_share, mounted="size=8m")

    [(level, text), moved] = found
    assert level == "fail"
    assert "is on a network file system (fuse.sshfs)" in text
    assert moved == ["ok", "the file is on a local file system"]


def check_share(folder: Path) -> list[tuple[str, str]]:
    """Return what the check says about a file on a network file system, and on the one below it."""
    share = folder / "share"
    share.mkdir()
    with fuse.mounted(share, kind="sshfs"):
        found = [file_system(share / "jobs.db")]
    return [*found, file_system(share / "jobs.db")]


def file_system(file: Path) -> tuple[str, str]:
    [finding] = [each for each in check_file(file) if each.check == "file system"]
    return finding.level.value, finding.text


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_network_file_systems_are_known_by_their_kind(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Simulated: this machine has no server for most of them."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nhost:/export {tmp_path} {kind} rw 0 0\ntmp {tmp_path}/other tmpfs rw 0 0\n")
    monkeypatch.setattr(sqlite, "MOUNTS", str(mounts))

    [found] = problems(file, "file system")
    assert f"is on a network file system ({kind})" in found.text

    mounts.write_text("disk / ext4 rw 0 0\n")
    assert problems(file, "file system") == []
    mounts.unlink()
    assert file_system_of(file) == ""


def test_little_free_space_is_reported_until_there_is_enough(tmp_path: Path) -> None:
    found = mount_namespace.call_in(tmp_path, check_space, mounted="size=8m")

    assert [level for level, _ in found] == ["fail", "warn", "ok"]
    assert all(" MB are free on the disk of " in text for _, text in found[:2])


def check_space(folder: Path) -> list[tuple[str, str]]:
    """Return what the check says about a small disk, a larger one and a large one."""
    file = folder / "jobs.db"
    SqliteDriver(file).close()
    found = []
    for size in ("8m", "200m", "1g"):
        subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)
        [finding] = [each for each in check_file(file) if each.check == "free space"]
        found.append((finding.level.value, finding.text))
    return found


def test_checks_that_a_full_disk_prevents_name_the_disk(tmp_path: Path) -> None:
    found = mount_namespace.call_in(tmp_path, examine_full_disk, mounted="size=2m")

    failed = {check: remedy for check, level, remedy in found if level == "fail"}
    assert failed.keys() == {"locks", "journal mode", "tables", "free space", "schema"}
    assert failed["free space"].startswith("free space")
    del failed["free space"]
    assert all(remedy.startswith("see that the disk works, and that it is not full") for remedy in failed.values())


def examine_full_disk(folder: Path) -> list[tuple[str, str, str]]:
    """Return what the doctor finds about a file on a disk without any free space."""
    file = folder / "jobs.db"
    SqliteDriver(file).close()
    with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4_096))
    found = examine(f"sqlite:///{file}", keep=timedelta(days=7))
    return [(each.check, each.level.value, each.remedy) for each in found]


def test_a_file_that_is_none_of_sqlite_is_said_to_be_damaged(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    file.write_bytes(b"none of SQLite" * 100)

    found = {each.check: each.remedy for each in examine(f"sqlite:///{file}", keep=timedelta(days=7)) if each.remedy}

    assert {"journal mode", "tables", "schema"} <= found.keys()
    assert {found[check] for check in ("journal mode", "tables", "schema")} == {
        "the file is damaged, or is none of SQLite: restore it from a backup"
    }
