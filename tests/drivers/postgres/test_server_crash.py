"""A PostgreSQL that is killed while processes work on it: the rows tell what became of every job."""

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
from taskharbor.testing.conformance.subject import BOOM, PATIENCE, new_job
from taskharbor.testing.postgres import PostgresServer
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
CREW: Final = 3
BATCH: Final = 60  # large enough to begin where the last batch ended, now and then
LEASE: Final = timedelta(seconds=2)
DEADLINE: Final = timedelta(seconds=2)
DOWN: Final = [0.0, 2.5]  # seconds: calls outlive the one, and fail in the other, while their leases end
MANY: Final = 1_000_000  # attempts: no job shall die of being lost too often
BACK_WITHIN: Final = 5.0  # seconds after the server answers again
LIMIT: Final = 60.0  # seconds; far more than anything waited for here takes
SPAWN: Final = multiprocessing.get_context("spawn")
FINAL: Final = {Status.SUCCEEDED, Status.DEAD}


def test_nothing_is_lost_and_nothing_settled_twice_when_the_server_is_killed_under_its_workers() -> None:
    figures = drain_with_kills(KILLS, JOBS)

    assert figures["kills"] == KILLS


def drain_with_kills(kills: int, jobs: int) -> dict[str, object]:
    """Let processes take *jobs* and some of their own through a server that is killed so often.

    Raises where a promise was broken, or where one of them did not work again in time.
    """
    with TemporaryDirectory(prefix="taskharbor-crash-") as name:
        folder = Path(name)
        with PostgresServer.start(folder / "server", durable=True) as server:
            migrate.migrate_up(schema_at(server.url), MIGRATIONS)
            with closing(PostgresDriver(server.url)) as driver:
                Log(folder, "first").insert(driver, jobs)
            pauses = _kill_again_and_again(server, folder, kills)
            _drain(server.url, Log(folder, "last"))
            figures = _verdict(server.url, [*_entries(folder)])
    return figures | {
        "kills": kills,
        "processes": CREW,
        "seconds until all worked again, most": round(max(pauses), 3),
        "seconds until all worked again, median": round(median(pauses), 3),
    }


def _kill_again_and_again(server: PostgresServer, folder: Path, kills: int) -> list[float]:
    """Return how long it took after each restart until every process had got something done."""
    pulses, is_over = SPAWN.Array("d", CREW), SPAWN.Event()
    crew = [SPAWN.Process(target=_work, args=(server.url, folder, n, pulses, is_over)) for n in range(CREW)]
    for process in crew:
        process.start()
    try:
        wait_until(lambda: all(pulses[:]), limit=LIMIT)
        pauses = [_kill_once(server, pulses, down_for=DOWN[n % len(DOWN)]) for n in range(kills)]
        is_over.set()
        for process in crew:
            process.join(LIMIT)
        assert [process.exitcode for process in crew] == [0] * CREW, "a process did not end well"
        return pauses
    finally:
        for process in crew:
            process.kill()


def _kill_once(server: PostgresServer, pulses: SynchronizedArray[float], *, down_for: float) -> float:
    """Kill the server at some moment, bring it back after a while, and wait for everybody."""
    _let_pass(random.uniform(0.1, 0.8))
    server.kill()
    _let_pass(down_for)
    server.restart()
    back_at = time.monotonic()
    took = wait_until(lambda: all(pulse > back_at for pulse in pulses[:]), limit=LIMIT)
    assert took < BACK_WITHIN, f"it took {took:.1f} s until everybody worked again"
    return took


def _let_pass(seconds: float) -> None:
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end)


def _work(url: str, folder: Path, number: int, pulses: SynchronizedArray[float], is_over: Signal) -> None:
    driver, log = PostgresDriver(url, deadline=DEADLINE), Log(folder, f"worker{number}")
    while not is_over.is_set():
        log.insert(driver, 5)
        log.take_and_settle(driver)
        pulses[number] = time.monotonic()
    log.write("unavailable", [(log.unavailable,)])
    driver.close()


def _drain(url: str, log: Log) -> None:
    """Finish what is left, once the last lease has ended."""
    with closing(PostgresDriver(url)) as driver, psycopg.connect(url, autocommit=True) as db:
        living = "SELECT FROM th_jobs WHERE status NOT IN ('SUCCEEDED', 'DEAD') LIMIT 1"

        def is_drained() -> bool:
            log.take_and_settle(driver)
            return db.execute(living).fetchone() is None

        wait_until(is_drained, limit=LIMIT)


class Log:
    """What one process asked for and was told, in a file of its own; and how it goes about it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.log"
        self.unavailable = 0

    def write(self, what: str, facts: Sequence[tuple[object, ...]]) -> None:
        with self._path.open("a") as file:
            file.writelines(json.dumps([what, *map(str, each)]) + "\n" for each in facts)

    def insert(self, driver: PostgresDriver, count: int) -> None:
        """Insert until it is answered, as a client does that must not lose a job."""
        new = [new_job(max_attempts=MANY) for _ in range(count)]
        self.write("asked", [(job.id,) for job in new])
        answers = self._insisting(lambda again: driver.insert(new, repeat=again))
        self.write("accepted", [(each.id,) for each in answers if isinstance(each, Enqueued)])

    def take_and_settle(self, driver: PostgresDriver) -> None:
        """Reserve once: what was taken by a call without an answer is found by whoever comes after the lease."""
        token = new_token()
        try:
            claims = driver.reserve(
                "default", token=token, worker="w", lease=LEASE, limit=BATCH, overdue_after=PATIENCE
            )
        except StoreUnavailable:
            self.unavailable += 1
            return
        self.write("ran", [(claim.job.id, token) for claim in claims])
        settlements = [Settlement(claim.lease, _outcome(claim)) for claim in claims]
        answers = self._insisting(lambda _: driver.settle(settlements))
        told = zip(settlements, answers, strict=True)
        self.write("settled", [(*_key(each), answer.status) for each, answer in told if isinstance(answer, Settled)])

    def _insisting(self, call: Callable[[bool], list[Any]]) -> list[Any]:
        again = False
        while True:
            try:
                return call(again)
            except StoreUnavailable as error:
                self.unavailable += 1
                again = True
                if error.retry_in is not None:
                    _let_pass(error.retry_in.total_seconds())


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


def _verdict(url: str, log: Sequence[list[str]]) -> dict[str, object]:
    """Check what the rows say against what the processes were told, and return how much there was of it."""
    with psycopg.connect(url) as db:
        columns = "id::text, status, settled_token::text, attempt_count, result"
        rows = [Row(*row) for row in db.execute(f"SELECT {columns} FROM th_jobs".encode())]
        attempts = db.execute("SELECT job_id::text, token::text, event FROM th_attempts").fetchall()
        deaths = Counter(str(job_id) for (job_id,) in db.execute("SELECT job_id FROM th_outbox"))
    ids = {row.id for row in rows}
    assert len(ids) == len(rows), "one id, two rows"
    assert {each[1] for each in log if each[0] == "accepted"} <= ids, "a job that was accepted is gone"
    assert ids <= {each[1] for each in log if each[0] == "asked"}, "a job that nobody asked for"
    assert {row.status for row in rows} <= FINAL, "a job was left behind"
    assert deaths == Counter(row.id for row in rows if row.status == Status.DEAD), "deaths and events differ"
    _check_outcomes(rows, {(job, token): event for job, token, event in attempts}, log)
    _check_attempts(rows, Counter(job for job, _, _ in attempts))
    return {
        "jobs": len(rows),
        "settled and told": sum(each[0] == "settled" for each in log),
        "attempts lost": sum(event in {"reclaim", "expire"} for _, _, event in attempts),
        "calls that failed": sum(int(each[1]) for each in log if each[0] == "unavailable"),
    }


def _check_outcomes(rows: Sequence[Row], recorded: dict[tuple[str, str], str], log: Sequence[list[str]]) -> None:
    acked = {(row.id, row.settled_token) for row in rows if row.status == Status.SUCCEEDED}
    told = [(each[1], each[2], each[3]) for each in log if each[0] == "settled"]
    ran = [(each[1], each[2]) for each in log if each[0] == "ran"]
    assert {*Counter(told).values()} <= {1}, "an outcome was told twice"
    assert {*Counter(ran).values()} <= {1}, "an attempt was given to two"
    assert {*Counter(job for job, _, event in told if event == Event.ACK).values()} <= {1}, "a job was settled twice"
    for job, token, event in told:
        is_kept = (job, token) in acked if event == Event.ACK else recorded.get((job, token)) == event
        assert is_kept, "an outcome that was told is not in the rows"
    for each in ran:
        assert each in acked or each in recorded, "an attempt that ran left no trace"


def _check_attempts(rows: Sequence[Row], recorded: Counter[str]) -> None:
    """An attempt either succeeded, which ends its job, or left a row."""
    for row in rows:
        has_succeeded = row.status == Status.SUCCEEDED
        assert row.attempt_count == recorded[row.id] + has_succeeded, "attempts were not counted right"
        assert row.result == (UUID(row.id).bytes if has_succeeded else None), "a result is not that of its job"
