"""Checks of a SQLite file and of the disk that it is on."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

from taskharbor.doctor.findings import Finding, Level, run_check
from taskharbor.drivers.sqlite.schema import MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.doctor.findings import Problem

LOW_SPACE: Final = 500 * 2**20
NO_SPACE: Final = 50 * 2**20
LARGE_LOG: Final = 500 * 2**20
LOCK_SECONDS: Final = 5.0
"""How long the write lock is waited for. Workers and clients give up after as long."""
READ_SECONDS: Final = 1.0
"""How long a read waits. A write-ahead log delays none, unless a program uses the file alone."""
_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "sshfs", "afs", "ceph", "glusterfs", "rclone", "s3fs")
NETWORK_FILE_SYSTEMS: Final = frozenset({*_NETWORK, *(f"fuse.{each}" for each in _NETWORK)})
"""The kinds as the kernel shows them: many exist in the kernel and as a program (FUSE)."""
MOUNTS: Final = "/proc/self/mounts"
LOCKS: Final = "/proc/locks"
WRITE_LOCK: Final = 120
"""The byte of the file ``-shm`` that a writer has locked, by the format of SQLite's write-ahead log."""


def check_file(file: Path) -> Iterator[Finding]:
    """Check the file, its write-ahead log, and its disk."""
    yield from run_check("file", f"{file} can be written", lambda: _file(file))
    yield from run_check("locks", "the write lock is free", lambda: _locks(file))
    yield from run_check("journal mode", "the journal mode is WAL", lambda: _journal(file))
    yield from run_check("tables", "all tables, indexes and triggers exist", lambda: _objects(file))
    yield from run_check("write-ahead log", "the write-ahead log is small", lambda: _log(file))
    yield from run_check("file system", "the file is on a local file system", lambda: _file_system(file))
    yield from run_check("free space", "there is enough free space", lambda: _space(file))


def _file(file: Path) -> Iterator[Problem]:
    for path in (file, file.parent):
        if not os.access(path, os.W_OK):
            yield Level.FAIL, f"{path} cannot be written by this user", f"change its owner or mode: ls -ld {path}"


def _locks(file: Path) -> Iterator[Problem]:
    """Take the write lock for a moment. Readers do not wait for it, so no other check would notice."""
    with closing(sqlite3.connect(_uri(file, "rw"), uri=True, timeout=LOCK_SECONDS, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            text = f"{_writer(file)} has held the write lock of {file} for {LOCK_SECONDS:.0f} s"
            yield (
                Level.FAIL,
                f"{text}: no job can be enqueued, claimed or recorded",
                f"end its transaction, or the program; lsof {file} shows all that use the file",
            )
        else:
            db.execute("ROLLBACK")


def _uri(file: Path, mode: str) -> str:
    """Return the URI of *file*. An unquoted path ends at ``#`` or ``?`` for SQLite, and ``%41`` in it is ``A``."""
    return f"{file.absolute().as_uri()}?mode={mode}"


def _writer(file: Path) -> str:
    """Return who has the write lock, by the locks that the kernel shows. To open the file would free its locks."""
    try:
        status = file.with_name(f"{file.name}-shm").stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        with open(LOCKS, encoding="utf-8") as locks:  # noqa: PTH123  the path of a kernel interface
            found = [line.split() for line in locks]
        # Each is a number, the kind twice, READ or WRITE, the process, the file, its first byte and its last.
        pids = [each[4] for each in found if each[3] == "WRITE" and each[5:7] == [place, str(WRITE_LOCK)]]
        with open(f"/proc/{pids[0]}/comm", encoding="utf-8") as name:  # noqa: PTH123  as above
            return f"process {pids[0]} ({name.read().strip()!r})"
    except (OSError, IndexError):
        return "another program"


def _journal(file: Path) -> Iterator[Problem]:
    with closing(sqlite3.connect(_uri(file, "ro"), uri=True, timeout=READ_SECONDS)) as db:
        [mode] = db.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        yield (
            Level.WARN,
            f"the journal mode is {mode}: readers and writers wait for each other",
            "close all programs that use the file, and start a worker: it sets the mode to WAL",
        )


def _objects(file: Path) -> Iterator[Problem]:
    """Compare the file with one that has just been migrated to its version."""
    with closing(sqlite3.connect(_uri(file, "ro"), uri=True, timeout=READ_SECONDS)) as db:
        found = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if "th_migrations" not in found:
            return
        [version] = db.execute("SELECT max(number) FROM th_migrations").fetchone()
    if version is None or version > len(MIGRATIONS):
        return  # the check of the schema says so
    with closing(sqlite3.connect(":memory:")) as db:
        for migration in MIGRATIONS[:version]:
            db.executescript(migration.sql)
        for name, kind, sql in db.execute("SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL"):
            if name not in found and not name.startswith("sqlite_"):
                yield Level.FAIL, f"{kind} {name} is missing", f"{sql};"


def _log(file: Path) -> Iterator[Problem]:
    log = file.with_name(f"{file.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > LARGE_LOG:
        yield (
            Level.WARN,
            f"{log} has {size / 2**20:,.0f} MB: a reader that never ends its transaction prevents checkpoints",
            f"find it with: lsof {file}",
        )


def _file_system(file: Path) -> Iterator[Problem]:
    kind = file_system_of(file)
    if kind in NETWORK_FILE_SYSTEMS:
        yield (
            Level.FAIL,
            f"{file} is on a network file system ({kind}), whose locks SQLite cannot rely on: jobs can be lost",
            "move the file to a local disk, or use PostgreSQL",
        )


def file_system_of(file: Path) -> str:
    """Return the type of the file system of *file*; empty if this machine does not show it."""
    try:
        with open(MOUNTS, encoding="utf-8") as mounts:  # noqa: PTH123  the path of a kernel interface
            entries = [line.split()[1:3] for line in mounts]
    except OSError:
        return ""
    absolute = file.resolve()
    within = [(place, kind) for place, kind in entries if absolute.is_relative_to(place.replace("\\040", " "))]
    return max(within, key=lambda each: len(each[0]), default=("", ""))[1]


def _space(file: Path) -> Iterator[Problem]:
    free = shutil.disk_usage(file.parent).free
    if free < LOW_SPACE:
        level = Level.FAIL if free < NO_SPACE else Level.WARN
        yield (
            level,
            f"{free / 2**20:,.0f} MB are free on the disk of {file}",
            "free space, or shorten the retention (--keep)",
        )
