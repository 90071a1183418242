"""A PostgreSQL server that is killed while processes use it: the rows must match what the processes recorded."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import psycopg

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued, Settled, Settlement
from taskharbor.core.states import Event, Status
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.testing.conformance.subject import BOOM, OVERDUE_AFTER, new_job
from taskharbor.testing.postgres import PostgresServer
from tests.support.audit import audit
from tests.support.postgres import schema_at
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.sharedctypes import SynchronizedArray
    from multiprocessing.synchronize import Event as Signal

    from taskharbor.core.ids import Token
    from taskharbor.core.model import Claim

KILLS: Final = 2
JOBS: Final = 2_000
WORKERS: Final = 3
BATCH: Final = 60  # large enough to use scan cursors
LEASE: Final = timedelta(seconds=2)
DEADLINE: Final = timedelta(seconds=2)
DOWN_SECONDS: Final = [0.0, 2.5]  # calls survive the first; in the second they fail and their leases expire
MAX_ATTEMPTS: Final = 1_000_000  # so that no job dies of lost attempts
RECOVERY_SECONDS: Final = 15.0  # after the server is available again; about two if the machine is idle
LIMIT_SECONDS: Final = 60.0  # far more than any wait here takes
SPAWN: Final = multiprocessing.get_context("spawn")
FINAL: Final = {Status.SUCCEEDED, Status.DEAD}


def test_a_server_killed_under_its_workers_loses_and_repeats_nothing() -> None:
    figures = drain_with_kills(KILLS, JOBS)

    assert figures["kills"] == KILLS


def drain_with_kills(kills: int, jobs: int) -> dict[str, object]:
    """Let processes run *jobs*, and jobs that they insert, on a server that is killed *kills* times.

    The claims of the first process are asynchronous: a kill may undo them, but no job and no outcome.
    Raise if a guarantee is broken, or if a process does not recover in time.
    """
    with TemporaryDirectory(prefix="taskharbor-crash-") as name:
        folder = Path(name)
        with PostgresServer.start(folder / "server", durable=True) as server:
            migrate.migrate_up(schema_at(server.url), MIGRATIONS)
            with closing(PostgresDriver(server.url)) as driver:
                Log(folder, "first").insert(driver, jobs)
            pauses = _kill_repeatedly(server, folder, kills)
            _drain(server.url, Log(folder, "last"))
            figures = _check_rows(server.url, [*_entries(folder)])
    return figures | {
        "kills": kills,
        "processes": WORKERS,
        "seconds until all worked again, most": round(max(pauses), 3),
        "seconds until all worked again, median": round(median(pauses), 3),
    }


def _kill_repeatedly(server: PostgresServer, folder: Path, kills: int) -> list[float]:
    """Return, for each restart, the seconds until every process had completed a call."""
    worked_at, is_stopped = SPAWN.Array("d", WORKERS), SPAWN.Event()
    workers = [SPAWN.Process(target=_work, args=(server.url, folder, n, worked_at, is_stopped)) for n in range(WORKERS)]
    for process in workers:
        process.start()
    try:
        wait_until(lambda: all(worked_at[:]), limit=LIMIT_SECONDS)
        pauses = [_kill_once(server, worked_at, down_for=DOWN_SECONDS[n % len(DOWN_SECONDS)]) for n in range(kills)]
        is_stopped.set()
        for process in workers:
            process.join(LIMIT_SECONDS)
        assert [process.exitcode for process in workers] == [0] * WORKERS, "a process failed"
        return pauses
    finally:
        for process in workers:
            process.kill()


def _kill_once(server: PostgresServer, worked_at: SynchronizedArray[float], *, down_for: float) -> float:
    """Kill the server at a random time, restart it, and wait until all processes work again."""
    _sleep(random.uniform(0.1, 0.8))
    server.kill()
    _sleep(down_for)
    server.restart()
    back_at = time.monotonic()
    took = wait_until(lambda: all(at > back_at for at in worked_at[:]), limit=LIMIT_SECONDS)
    assert took < RECOVERY_SECONDS, f"recovery took {took:.1f} s"
    return took


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end)


def _work(url: str, folder: Path, number: int, worked_at: SynchronizedArray[float], is_stopped: Signal) -> None:
    driver = PostgresDriver(url, deadline=DEADLINE, claims_asynchronously=number == 0)
    log = Log(folder, f"worker{number}", ran="ran asynchronously" if number == 0 else "ran")
    while not is_stopped.is_set():
        log.insert(driver, 5)
        log.reserve_and_settle(driver)
        worked_at[number] = time.monotonic()
    log.write("unavailable", [(log.unavailable,)])
    driver.close()


def _drain(url: str, log: Log) -> None:
    """Run the remaining jobs after the last lease has expired."""
    with closing(PostgresDriver(url)) as driver, psycopg.connect(url, autocommit=True) as db:
        living = "SELECT FROM th_jobs WHERE status NOT IN ('SUCCEEDED', 'DEAD') LIMIT 1"

        def is_drained() -> bool:
            log.reserve_and_settle(driver)
            return db.execute(living).fetchone() is None

        wait_until(is_drained, limit=LIMIT_SECONDS)
        assert audit(driver) == []


class Log:
    """Runs the calls of one process, and logs its requests and their results to a file."""

    def __init__(self, folder: Path, name: str, *, ran: str = "ran") -> None:
        self._path = folder / f"{name}.log"
        self._ran = ran
        self.unavailable = 0

    def write(self, what: str, facts: Sequence[tuple[object, ...]]) -> None:
        with self._path.open("a") as file:
            file.writelines(json.dumps([what, *map(str, each)]) + "\n" for each in facts)

    def insert(self, driver: PostgresDriver, count: int) -> None:
        """Insert, and repeat until it succeeds, like a client that must not lose a job."""
        new = [new_job(max_attempts=MAX_ATTEMPTS) for _ in range(count)]
        self.write("requested", [(job.id,) for job in new])
        answers = self._retried(lambda again: driver.insert(new, repeat=again))
        self.write("accepted", [(each.id,) for each in answers if isinstance(each, Enqueued)])

    def reserve_and_settle(self, driver: PostgresDriver) -> None:
        """Reserve once and settle. Jobs that a failed call claimed are reclaimed after their lease expires."""
        token = new_token()
        try:
            claims = driver.reserve(
                "default", token=token, worker="w", lease=LEASE, limit=BATCH, overdue_after=OVERDUE_AFTER
            )
        except StoreUnavailable:
            self.unavailable += 1
            return
        self.write(self._ran, [(claim.job.id, token) for claim in claims])
        settlements = [Settlement(claim.lease, _outcome(claim)) for claim in claims]
        answers = self._retried(lambda _: driver.settle(settlements))
        pairs = zip(settlements, answers, strict=True)
        self.write("settled", [(*_key(each), answer.status) for each, answer in pairs if isinstance(answer, Settled)])

    def _retried(self, call: Callable[[bool], list[Any]]) -> list[Any]:
        again = False
        while True:
            try:
                return call(again)
            except StoreUnavailable as error:
                self.unavailable += 1
                again = True
                if error.retry_in is not None:
                    _sleep(error.retry_in.total_seconds())


def _outcome(claim: Claim) -> Outcome:
    chance = random.random()
    if chance < 0.05:
        return Outcome.retry(after=timedelta(0), failure=BOOM)
    return Outcome.fail("hopeless", failure=BOOM) if chance < 0.07 else Outcome.ack(claim.job.id.bytes)


def _key(settlement: Settlement) -> tuple[UUID, Token, Event]:
    return settlement.lease.job_id, settlement.lease.token, settlement.outcome.event


def _entries(folder: Path) -> Iterator[list[str]]:
    for file in sorted(folder.glob("*.log")):
        yield from map(json.loads, file.read_text().splitlines())


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    status: str
    settled_token: str | None
    attempt_count: int
    result: bytes | None


def _check_rows(url: str, log: Sequence[list[str]]) -> dict[str, object]:
    """Check the rows against the logs of the processes, and return some counts."""
    with psycopg.connect(url) as db:
        columns = "id::text, status, settled_token::text, attempt_count, result"
        rows = [Row(*row) for row in db.execute(f"SELECT {columns} FROM th_jobs".encode())]
        attempts = db.execute("SELECT job_id::text, token::text, event FROM th_attempts").fetchall()
        deaths = Counter(str(job_id) for (job_id,) in db.execute("SELECT job_id FROM th_outbox"))
    ids = {row.id for row in rows}
    assert len(ids) == len(rows), "two rows have the same id"
    assert {each[1] for each in log if each[0] == "accepted"} <= ids, "an accepted job is missing"
    assert ids <= {each[1] for each in log if each[0] == "requested"}, "a job that was not requested"
    assert {row.status for row in rows} <= FINAL, "a job is not finished"
    assert deaths == Counter(row.id for row in rows if row.status == Status.DEAD), "deaths and events differ"
    _check_outcomes(rows, {(job, token): event for job, token, event in attempts}, log)
    _check_attempts(rows, Counter(job for job, _, _ in attempts))
    return {
        "jobs": len(rows),
        "settled and confirmed": sum(each[0] == "settled" for each in log),
        "attempts lost": sum(event in {"reclaim", "expire"} for _, _, event in attempts),
        "calls that failed": sum(int(each[1]) for each in log if each[0] == "unavailable"),
    }


def _check_outcomes(rows: Sequence[Row], recorded: dict[tuple[str, str], str], log: Sequence[list[str]]) -> None:
    acked = {(row.id, row.settled_token) for row in rows if row.status == Status.SUCCEEDED}
    confirmed = [(each[1], each[2], each[3]) for each in log if each[0] == "settled"]
    ran = [(each[1], each[2]) for each in log if each[0].startswith("ran")]
    assert {*Counter(confirmed).values()} <= {1}, "an outcome was confirmed twice"
    assert {*Counter(ran).values()} <= {1}, "two processes ran the same attempt"
    assert {*Counter(job for job, _, event in confirmed if event == Event.ACK).values()} <= {1}, (
        "a job was settled twice"
    )
    for job, token, event in confirmed:
        is_kept = (job, token) in acked if event == Event.ACK else recorded.get((job, token)) == event
        assert is_kept, "a confirmed outcome is not in the rows"
    for each in [(each[1], each[2]) for each in log if each[0] == "ran"]:
        assert each in acked or each in recorded, "an attempt that ran is not recorded"


def _check_attempts(rows: Sequence[Row], recorded: Counter[str]) -> None:
    """Check that each attempt either succeeded or has a row."""
    for row in rows:
        has_succeeded = row.status == Status.SUCCEEDED
        assert row.attempt_count == recorded[row.id] + has_succeeded, "the number of attempts is wrong"
        assert row.result == (UUID(row.id).bytes if has_succeeded else None), "a result belongs to another job"
