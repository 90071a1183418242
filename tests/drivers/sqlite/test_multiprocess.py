"""Tests of two processes on one SQLite file: killed at random times, and out of space during a commit."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from uuid import UUID

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import JobId, Token, new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued, Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import OVERDUE_AFTER, new_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.context import SpawnProcess

    from taskharbor.core.model import Claim

SECONDS: Final = 6
KILLS: Final = 3
LEASE: Final = timedelta(seconds=1)
TIMEOUT_SECONDS: Final = 30.0  # far more than any wait here takes
MAX_ATTEMPTS: Final = 1_000_000  # no job may exhaust its attempts by lost leases
SPAWN: Final = multiprocessing.get_context("spawn")


def test_killing_one_of_two_processes_loses_no_jobs_and_settles_none_twice() -> None:
    figures = hammer(SECONDS, KILLS)

    assert figures["kills"] == KILLS


def hammer(seconds: float, kills: int) -> dict[str, int]:
    """Let two processes work on one file, kill one of them *kills* times, and check the guarantees."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.db"
        SqliteDriver(file).close()
        _kill_repeatedly(file, seconds, kills)
        log = [*_lines(file)]
        driver = SqliteDriver(
            file, clock=ManualClock(datetime.now(UTC) + timedelta(hours=1))
        )  # every lease has expired
        _drain(driver, Log(file, "drain"))
        figures = _check(driver, [*log, *_lines(file, "drain")])
        driver.close()
        assert _integrity(file) == "ok"
    return figures | {"kills": kills}


def _kill_repeatedly(file: Path, seconds: float, kills: int) -> None:
    survivor = _start(file, "survivor", seconds)
    try:
        for n in range(kills):
            victim = _start(file, f"victim{n}", seconds + TIMEOUT_SECONDS)
            # It dies at a random point of its loop, but not before it has started to work.
            _wait_for_work(file, f"victim{n}", victim)
            victim.join(random.random() * seconds / (kills + 1))
            _kill(victim)
        survivor.join(seconds + TIMEOUT_SECONDS)
        assert survivor.exitcode == 0
    finally:
        _kill(survivor)


def _start(file: Path, name: str, seconds: float) -> SpawnProcess:
    process = SPAWN.Process(target=_work, args=(file, name, seconds))
    process.start()
    return process


def _kill(process: SpawnProcess) -> None:
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join(TIMEOUT_SECONDS)
    process.close()


def _wait_for_work(file: Path, name: str, process: SpawnProcess) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not any(_lines(file, name)):
        assert time.monotonic() < end, "the process never started to work"
        process.join(0.01)
        assert process.exitcode is None, "the process exited on its own"


def _work(file: Path, name: str, seconds: float) -> None:
    """Insert, reserve and ack, and log every answer immediately."""
    driver, log, end = SqliteDriver(file), Log(file, name), time.monotonic() + seconds
    while time.monotonic() < end:
        answers = driver.insert([new_job(max_attempts=MAX_ATTEMPTS) for _ in range(random.randint(1, 5))])
        log.write([("accepted", each.id, None) for each in answers if isinstance(each, Enqueued)])
        _reserve_and_ack(driver, log, name)
        driver.maintenance.expire(limit=random.randint(1, 5))
    driver.close()


def _drain(driver: SqliteDriver, log: Log) -> None:
    while _reserve_and_ack(driver, log, "drain"):
        pass


def _reserve_and_ack(driver: SqliteDriver, log: Log, worker: str) -> Sequence[Claim]:
    token = new_token()
    claims = driver.reserve("default", token=token, worker=worker, lease=LEASE, limit=10, overdue_after=OVERDUE_AFTER)
    log.write([("ran", claim.job.id, token) for claim in claims])
    answers = driver.settle([Settlement(claim.lease, Outcome.ack()) for claim in claims])
    log.write([("settled", each.job_id, token) for each in answers if isinstance(each, Settled)])
    return claims


@dataclass(frozen=True, slots=True)
class Entry:
    what: str
    job_id: JobId
    token: Token | None


class Log:
    """What one process knows, synced to disk before the process continues."""

    def __init__(self, file: Path, name: str) -> None:
        self._descriptor = os.open(file.with_name(f"{name}.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, entries: Sequence[tuple[str, JobId, Token | None]]) -> None:
        os.write(self._descriptor, "".join(f"{what} {job} {token or '-'}\n" for what, job, token in entries).encode())
        os.fsync(self._descriptor)


def _lines(file: Path, name: str = "*") -> Iterator[Entry]:
    for log in sorted(file.parent.glob(f"{name}.log")):
        complete, _, _ = log.read_text().rpartition("\n")
        for line in complete.splitlines():
            what, job, token = line.split()
            yield Entry(what, JobId(UUID(job)), None if token == "-" else Token(UUID(token)))


def _check(driver: SqliteDriver, log: Sequence[Entry]) -> dict[str, int]:
    """Check the rows against the answers that the processes received, and return the counts."""
    ids = list(dict.fromkeys(entry.job_id for entry in log))
    rows = driver.inspector.get(ids)
    lost = {(attempt.job_id, attempt.token) for attempt in driver.inspector.attempts(ids)}
    ran = {(entry.job_id, entry.token) for entry in log if entry.what == "ran"}
    settled = Counter(entry.job_id for entry in log if entry.what == "settled")
    answered = {(entry.job_id, entry.token) for entry in log if entry.what == "settled"}
    kept = {(job.id, job.settled_token) for job in rows.values()}

    assert not [job_id for job_id in ids if job_id not in rows], "an accepted job is missing"
    assert {job.status for job in rows.values()} == {Status.SUCCEEDED}
    assert {*settled.values()} == {1}, "a job was settled twice"
    assert answered <= kept, "an answered settlement is not in the row"
    assert ran - kept <= lost, "a lost attempt was not recorded"
    return {"jobs": len(ids), "settlements answered": len(settled), "attempts lost": len(lost)}


def _integrity(file: Path) -> object:
    with closing(sqlite3.connect(file)) as db:
        return db.execute("PRAGMA integrity_check").fetchone()[0]


def test_a_file_size_limit_during_a_commit_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    with SPAWN.Pool(1) as pool:  # the limit applies to the whole process
        accepted, error, after = pool.apply_async(_run_out_of_space, (file,)).get(TIMEOUT_SECONDS)

    driver = SqliteDriver(file)
    kept = driver.inspector.get([*accepted, *after])
    driver.close()

    assert str(file) in error
    assert "\n" not in error
    assert {*kept} == {*accepted, *after}
    assert _integrity(file) == "ok"


def _run_out_of_space(file: Path) -> tuple[list[JobId], str, list[JobId]]:
    """Insert under a file size limit until it fails, and once more without the limit."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit must fail, not kill the process
    driver = SqliteDriver(file)
    accepted, error = _insert_much(driver), ""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = max(part.stat().st_size for part in file.parent.iterdir()) + 100_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard_limit))
    try:
        while True:
            accepted += _insert_much(driver)
    except StoreUnavailable as full:
        error = str(full)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
    after = _insert_much(driver)
    driver.close()
    return accepted, error, after


def test_a_page_limit_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    driver = SqliteDriver(file)
    accepted, error = _insert_much(driver), ""
    with driver._connections.read() as db:  # noqa: SLF001  simulates a full disk
        [pages] = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages + 10}")

    try:
        while True:
            accepted += _insert_much(driver)
    except StoreUnavailable as full:
        error = str(full)

    with driver._connections.read() as db:  # noqa: SLF001  as above
        db.execute("PRAGMA max_page_count = 1000000")
    accepted += _insert_much(driver)
    kept = driver.inspector.get(accepted)
    driver.close()

    assert "disk full" in error
    assert "\n" not in error
    assert {*kept} == {*accepted}
    assert _integrity(file) == "ok"


def _insert_much(driver: SqliteDriver) -> list[JobId]:
    """Store more than ten pages in one commit."""
    answers = driver.insert([new_job(payload=b"x" * 1_000) for _ in range(200)])
    return [answer.id for answer in answers if isinstance(answer, Enqueued)]
