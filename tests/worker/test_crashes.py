"""Workers that are killed, suspended, stopped or cut off from their store, checked by the rows and the effects."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.model import AttemptOutcome
from taskharbor.core.states import Status
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.testing.postgres import PostgresServer
from tests.support.postgres import emptied, schema_at
from tests.support.waiting import has_ended_by, wait_until
from tests.support.worker_fleet import LEASE, LIMIT_SECONDS, ROOT, Fleet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from taskharbor.core.ids import JobId

OFTEN: Final = (
    "reserve", "settle", "extend", "read_back", "claim_duty", "expire", "now", "record_worker", "record_statistics",
)  # fmt: skip
VERBS: Final = (
    *OFTEN, "save_progress", "report_clock_jump", "bury", "prune", "roll_up", "prune_audit", "prune_workers",
    "close_outbox", "due_schedules", "prune_schedules", "resume_paused",
)  # fmt: skip
BY_MESSAGES: Final = ("claim", "record_dispatch", "record_delivery", "claim_outbox", "settle_outbox")
OF_SCHEDULES: Final = ("put_schedules", "advance_schedule", "schedules", "get", "summaries", "cancel")
"""Verbs that only schedules call: `tests.schedules.test_restarts` kills workers at all of them."""
OF_OPERATORS: Final = ("purge", "outbox", "record_runs")
"""Verbs that a worker does not call by default, but `dead purge` and `schedules run` do."""
OF_PAUSES: Final = ("record_audit",)
"""It only adds a line about a queue that was resumed when its pause ended. A kill there leaves the queue resumed."""
OF_CANCELS: Final = ("cancel_requested",)
"""It only reads, and only after a cancel: a worker that is killed there leaves its jobs as one killed in a handler."""
OF_LOST_LEASES: Final = ("record_refusals",)
"""It adds to timelines what the store refused, and only then: `tests.worker.test_refusals` suspends workers for it."""
AT_STOP: Final = ("remove_worker",)
"""Verbs that a worker calls last, when it holds no job. A kill there leaves a record that the janitor prunes."""
NEEDS: Final[Mapping[str, dict[str, Any]]] = {
    "read_back": {"loses_replies_of": "reserve"},
    "report_clock_jump": {"strays": True},
}
"""The faults that a worker needs before it makes such a call."""
SIDES: Final = ("before", "after")
POINTS: Final = [(verb, when, 1) for verb in OFTEN for when in SIDES]
SOURCE: Final = ROOT / "src" / "taskharbor"
APART: Final = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
RECOVERY_SECONDS: Final = 5.0  # after the store answers again


@pytest.fixture(params=["sqlite", "postgres"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    url = emptied() if request.param == "postgres" else str(tmp_path / "jobs.db")
    with Fleet.at(url, tmp_path) as started:
        yield started


def test_nothing_is_lost_when_workers_are_killed_before_and_after_each_call_of_the_store(fleet: Fleet) -> None:
    figures = kill_at(fleet, POINTS)

    assert figures["dead"] == 0
    assert figures["attempts lost"] > 0


def kill_at(fleet: Fleet, points: Sequence[tuple[str, str, int]], *, dying: int = 0, **options: Any) -> dict[str, int]:
    """Start a worker for each point, which kills itself there, and then another one that finishes the jobs.

    *dying* is how many jobs that cannot succeed are added to every twenty others.
    """
    doomed = [fleet.start(fatal=list(point), **NEEDS.get(point[0], {}), **options) for point in points]

    def are_all_dead() -> bool:
        if fleet.waiting() < 10:
            fleet.enqueue(10)
            fleet.enqueue(10, job_type="plain", seconds=0.4)  # long enough for a heartbeat
            fleet.enqueue(dying, job_type="plain", seconds=1e300, max_attempts=1)  # longer than a thread can wait
        fleet.make_duties_due()
        return all(each.poll() is not None for each in doomed)

    wait_until(are_all_dead, limit=LIMIT_SECONDS)
    # Not before: it might claim all rare duties before the doomed workers do.
    survivor = fleet.start(concurrency=16, **options)
    fleet.wait_until_done()
    fleet.end(survivor)
    assert {each.returncode for each in doomed} == {-signal.SIGKILL}, fleet.said()
    return fleet.verdict() | {"killed": len(doomed)}


def test_there_is_a_kill_point_for_every_call_that_a_worker_makes_of_the_store() -> None:
    others = ("cancellation.py", "janitor.py", "outbox.py", "schedules/scheduler.py")
    parts = [*(SOURCE / "worker").glob("*.py"), *(SOURCE / each for each in others)]
    source = "".join(part.read_text() for part in parts)
    called = {*re.findall(r"driver\.(?:(?:maintenance|inspector|control)\.)?(\w+)\(", source)}

    assert called - {"listen", *OF_OPERATORS, *OF_CANCELS, *OF_LOST_LEASES, *OF_PAUSES, *AT_STOP} == {
        *VERBS,
        *BY_MESSAGES,
        *OF_SCHEDULES,
    }


def test_expired_leases_are_reclaimed_once_when_workers_die_before_or_after_it(fleet: Fleet) -> None:
    victim = fleet.start()
    exhausted = fleet.enqueue(3, seconds=60, max_attempts=1)  # so that no other claim can reclaim them
    fleet.wait_for_starts(exhausted)
    victim.kill()
    wait_until(lambda: _are_expired(fleet, exhausted), limit=LIMIT_SECONDS)
    found = {}
    for when in SIDES:
        assert fleet.start(fatal=["expire", when, 1]).wait(LIMIT_SECONDS) == -signal.SIGKILL, fleet.said()
        found[when] = {job.status for job in fleet.driver.inspector.get(exhausted).values()}
    survivor = fleet.start()
    fleet.enqueue(1)
    fleet.wait_until_done()
    fleet.end(survivor)

    assert found == {"before": {Status.PROCESSING}, "after": {Status.DEAD}}
    assert len(fleet.driver.inspector.outbox(exhausted)) == len(exhausted)
    assert fleet.verdict()["dead"] == len(exhausted)


def _are_expired(fleet: Fleet, jobs: Sequence[JobId]) -> bool:
    ends = [job.lease_expires_at for job in fleet.driver.inspector.get(jobs).values()]
    return fleet.driver.inspector.now() >= max(end for end in ends if end is not None)


def test_jobs_of_a_lost_reply_come_back_when_workers_die_before_and_after_reading_it_back(fleet: Fleet) -> None:
    doomed = [fleet.start(fatal=["read_back", when, 1], loses_replies_of="reserve", concurrency=1) for when in SIDES]
    jobs = fleet.enqueue(2)
    assert [each.wait(LIMIT_SECONDS) for each in doomed] == [-signal.SIGKILL] * 2, fleet.said()
    found = fleet.driver.inspector.get(jobs)
    assert {(job.status, job.attempt_count) for job in found.values()} == {(Status.PROCESSING, 1)}
    assert fleet.effects.read() == []
    survivor = fleet.start()
    fleet.wait_until_done()
    fleet.end(survivor)

    figures = fleet.verdict()
    assert (figures["attempts lost"], figures["attempts begun"]) == (2, 2)


def test_an_outcome_whose_reply_was_lost_counts_when_workers_die_before_and_after_repeating_it(fleet: Fleet) -> None:
    jobs: list[JobId] = []
    for when in SIDES:
        doomed = fleet.start(fatal=["settle", when, 2], loses_replies_of="settle", concurrency=1)
        jobs += fleet.enqueue(1)
        assert doomed.wait(LIMIT_SECONDS) == -signal.SIGKILL, fleet.said()

    found = fleet.driver.inspector.get(jobs)
    assert {(job.status, job.attempt_count) for job in found.values()} == {(Status.SUCCEEDED, 1)}
    assert fleet.verdict()["attempts begun"] == 2


def test_a_worker_that_was_stopped_for_a_while_changes_nothing_once_others_took_its_jobs(fleet: Fleet) -> None:
    pause_workers(fleet, [0.5, 1.5, 3.0])

    fleet.verdict()


def pause_workers(fleet: Fleet, leases: Sequence[float]) -> None:
    """Suspend a running worker for each of these numbers of leases, while another worker continues."""
    stopped = [fleet.start() for _ in leases]
    fleet.wait_for_starts(fleet.enqueue(4 * len(leases), seconds=0.6) + fleet.enqueue(2, job_type="plain", seconds=0.6))
    for each in stopped:
        each.send_signal(signal.SIGSTOP)
    since = time.monotonic()
    awake = fleet.start()
    for each, pause in sorted(zip(stopped, leases, strict=True), key=lambda pair: pair[1]):
        wait_until(lambda pause=pause: time.monotonic() > since + pause * LEASE.total_seconds())  # type: ignore[misc]
        each.send_signal(signal.SIGCONT)
    fleet.enqueue(10)
    fleet.wait_until_done()
    for each in (*stopped, awake):
        fleet.end(each)


def test_a_stopping_worker_releases_unfinished_jobs_and_counts_no_attempt(fleet: Fleet) -> None:
    end_under_load(fleet)

    fleet.verdict()


def end_under_load(fleet: Fleet) -> None:
    """Stop a worker under load, with some endless jobs; check that the rest waits as if it were new."""
    worker = fleet.start(concurrency=8, grace=1.0)
    endless = fleet.enqueue(2, seconds=60) + fleet.enqueue(2, job_type="plain", seconds=60)  # these threads are stuck
    fleet.wait_for_starts(endless)
    fleet.enqueue(60, seconds=0.1)
    wait_until(lambda: len(fleet.effects.read("end")) > 0, limit=LIMIT_SECONDS)
    start = time.monotonic()
    fleet.end(worker)
    took = time.monotonic() - start

    jobs = fleet.driver.inspector.get(fleet.jobs)
    assert took < LIMIT_SECONDS / 2  # the endless jobs take as long as the limit
    assert {job.status for job in jobs.values()} == {Status.PENDING, Status.SUCCEEDED}
    assert {jobs[each].attempt_count for each in endless} == {0}
    assert {each.outcome for each in fleet.driver.inspector.attempts(endless)} == {AttemptOutcome.RELEASED}


@pytest.mark.parametrize("fleet", ["sqlite"], indirect=True)
def test_a_second_signal_ends_a_worker_now(fleet: Fleet) -> None:
    worker = fleet.start(grace=60.0)
    fleet.wait_for_starts(fleet.enqueue(1, job_type="plain", seconds=60))
    start = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: has_ended_by(worker, signal.SIGINT))

    assert worker.wait(LIMIT_SECONDS) == 128 + signal.SIGINT
    assert time.monotonic() - start < LIMIT_SECONDS / 2  # neither the job nor the grace


@pytest.mark.parametrize("fleet", ["sqlite"], indirect=True)
def test_a_worker_ends_well_as_process_1(fleet: Fleet) -> None:
    _skip_unless_allowed()
    outer = fleet.start(*APART)
    fleet.wait_for_starts(fleet.enqueue(1, job_type="plain", seconds=60))
    [inner] = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    subprocess.run(["kill", "-TERM", inner], check=True)

    assert outer.wait(LIMIT_SECONDS) == 0, fleet.said()
    assert {each.pid for each in fleet.effects.read()} == {1}
    assert [job.status for job in fleet.driver.inspector.get(fleet.jobs).values()] == [Status.PENDING]


def _skip_unless_allowed() -> None:
    try:
        tried = subprocess.run([*APART, "true"], capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    except FileNotFoundError as missing:
        pytest.skip(f"NOT RUN: to be process 1 needs Linux and unshare ({missing})")
    if tried.returncode:
        pytest.skip(f"NOT RUN: this machine does not allow a process to be process 1 ({tried.stderr.strip()})")


def test_a_job_that_kills_its_process_is_dead_after_as_many_workers_as_it_has_attempts(fleet: Fleet) -> None:
    workers = [fleet.start() for _ in range(4)]
    [poison] = fleet.enqueue(1, job_type="poison", max_attempts=3)
    fleet.enqueue(20)
    fleet.wait_until_done()
    codes = sorted(each.poll() or 0 for each in workers)

    job = fleet.driver.inspector.get([poison])[poison]
    assert codes == [-signal.SIGKILL] * 3 + [0]
    assert (job.status, job.attempt_count, job.dead_reason) == (Status.DEAD, 3, "attempts exhausted")
    assert len([each for each in fleet.effects.read() if each.job == str(poison)]) == 3
    assert [each.outcome for each in fleet.driver.inspector.attempts([poison])] == [AttemptOutcome.LOST] * 3
    assert len(fleet.driver.inspector.outbox([poison])) == 1
    assert fleet.verdict()["dead"] == 1


def test_workers_continue_after_an_outage_of_the_store() -> None:
    with served() as (server, fleet):
        assert outlive(server, fleet, seconds=2 * LEASE.total_seconds()) < 3 * RECOVERY_SECONDS  # a busy machine


@contextmanager
def served() -> Iterator[tuple[PostgresServer, Fleet]]:
    """Yield a PostgreSQL server that may be stopped, and workers for it."""
    with TemporaryDirectory(prefix="taskharbor-crash-") as name, ExitStack() as stack:
        folder = Path(name)
        server = stack.enter_context(PostgresServer.start(folder / "server"))
        migrate.migrate_up(schema_at(server.url), MIGRATIONS)
        yield server, stack.enter_context(Fleet.at(server.url, folder))


def outlive(server: PostgresServer, fleet: Fleet, *, seconds: float) -> float:
    """Stop the store for *seconds* under load; return how long it took until all workers ran jobs again."""
    workers = [fleet.start() for _ in range(2)]
    fleet.enqueue(400)
    fleet.wait_for_starts(fleet.enqueue(2, seconds=0.5, priority=-1))
    wait_until(lambda: len({each.pid for each in fleet.effects.read()}) == 2, limit=LIMIT_SECONDS)
    server.stop()
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, limit=seconds + LIMIT_SECONDS)
    assert [each.poll() for each in workers] == [None, None], fleet.said()
    server.restart()
    back_at = time.monotonic()
    took = wait_until(lambda: _workers_active(fleet, back_at) == 2, limit=LIMIT_SECONDS)
    fleet.wait_until_done()
    for each in workers:
        fleet.end(each)
    fleet.verdict()
    return took


def _workers_active(fleet: Fleet, since: float) -> int:
    fleet.enqueue(5)
    return len({each.pid for each in fleet.effects.read() if each.monotonic > since})
