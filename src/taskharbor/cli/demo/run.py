"""Runs the demo: worker processes on one SQLite file, failing jobs, and a worker that is killed.

At the end it prints a ledger, computed from the store and from the handlers' log.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from taskharbor import Client, JobRequest, Status
from taskharbor.cli.demo.fleet import LEASE, DemoFleet
from taskharbor.cli.demo.handlers import EffectLog
from taskharbor.cli.demo.ledger import ledger
from taskharbor.core.results import JobFilter
from taskharbor.core.states import FINAL
from taskharbor.drivers.sqlite import SqliteDriver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

    from rich.live import Live

    from taskharbor.cli.demo.ledger import Ledger
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary

MAX_EVENT_LINES: Final = 10  # above the counts
WORKERS: Final = 3
ENQUEUE_SECONDS: Final = 12.0  # how long jobs are enqueued
BATCH_SECONDS: Final = 0.1  # between two batches
KILL_AT_SECONDS: Final = 6.0
CHAOS_KILL_SECONDS: Final = 1.5  # between two kills with --chaos
MAX_RUN_SECONDS: Final = 60.0  # jobs that have not ended by then count as unfinished
FIND_BATCH: Final = 500
# Numbers of the batches that contain such jobs.
SLOW_AND_FLAKY: Final = range(2, 1_000, 8)
HOPELESS: Final = (30, 60)
POISON: Final = (20,)


class Display:
    """Shows events and job counts, live on a terminal."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._stack = ExitStack()
        self._live: Live | None = None
        self._events: list[str] = []
        self._counts: dict[str, int] = {}

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            self._live = self._open_live()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def say(self, text: str) -> None:
        """Show an event."""
        line = f"[{time.monotonic() - self._start:>5.1f} s] {text}"
        if self._live is None:
            click.echo(line)
        else:
            self._events = [*self._events, line][-MAX_EVENT_LINES:]
            self._draw()

    def count(self, counts: Mapping[str, int]) -> None:
        """Show the number of jobs in each state."""
        if self._live is None:
            self.say(" · ".join(f"{name} {count}" for name, count in counts.items()))
        else:
            self._counts = dict(counts)
            self._draw()

    def _open_live(self) -> Live | None:
        try:
            from rich.live import Live
        except ImportError:
            return None
        return self._stack.enter_context(Live(refresh_per_second=10))

    def _draw(self) -> None:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(*self._counts)
        table.add_row(*map(str, self._counts.values()))
        if self._live is not None:
            self._live.update(Group(*map(Text, self._events), table))


def run_demo(*, chaos: bool) -> bool:
    """Run the demo, print the ledger, and return whether it is clean."""
    folder = Path(tempfile.mkdtemp(prefix="taskharbor-demo-"))
    try:
        with Display() as display:
            found, codes = Demo(folder, display, kill_every=CHAOS_KILL_SECONDS if chaos else None).run()
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        raise
    click.echo("\n".join(["", *found.lines()]))
    if not found.is_clean or any(codes):
        click.echo(f"the demo failed (exit codes of the workers: {codes}); see the files in {folder}")
        return False
    shutil.rmtree(folder)
    return True


class Demo:
    def __init__(self, folder: Path, display: Display, *, kill_every: float | None) -> None:
        self.display = display
        self.kill_every = kill_every
        self.kill_at: float | None = KILL_AT_SECONDS if kill_every is None else kill_every
        self.log = EffectLog(folder / "effects.log")
        self.driver = SqliteDriver(folder / "jobs.db")
        self.client = Client(self.driver)
        self.fleet = DemoFleet(folder, f"sqlite:///{folder}/jobs.db", deaths=self.log, say=display.say)
        self.accepted: list[JobId] = []

    def run(self) -> tuple[Ledger, list[int]]:
        self.log.file.touch()
        self.display.say(f"starting {WORKERS} worker processes with leases of {LEASE}")
        try:
            self.fleet.start(WORKERS)
            self.work()
            self.wait_for_replacements()
            codes = self.fleet.stop()
        finally:
            self.fleet.end()
        self.display.say("all jobs have ended, and all workers have stopped")
        found = self.ledger()
        self.driver.close()
        return found, codes

    def work(self) -> None:
        """Enqueue jobs, kill workers, and wait until all jobs have ended."""
        start = shown_at = time.monotonic()
        batches = self.batches()
        while (passed := time.monotonic() - start) < MAX_RUN_SECONDS:
            requests = next(batches, None)
            if requests is not None:
                self.accepted += [enqueued.id for enqueued in self.client.enqueue_many(requests)]
            elif self.is_done():
                break
            if self.kill_at is not None and passed > self.kill_at and self.kill_a_busy_worker():
                self.kill_at = None if self.kill_every is None or requests is None else passed + self.kill_every
            self.fleet.replace_the_dead()
            if time.monotonic() >= shown_at:
                shown_at += 1.0
                self.show()
            threading.Event().wait(BATCH_SECONDS)
        self.show()

    def wait_for_replacements(self) -> None:
        """Wait until every process has registered in the store; an earlier signal would kill it."""
        give_up_at = time.monotonic() + MAX_RUN_SECONDS
        while time.monotonic() < give_up_at:
            reported = {worker.pid for worker in self.driver.inspector.workers()}
            starting = [member for member in self.fleet.members if member.process.pid not in reported]
            if not any(member.process.poll() is None for member in starting):
                return
            threading.Event().wait(BATCH_SECONDS)

    def batches(self) -> Iterator[list[JobRequest]]:
        """Yield the jobs of each batch: quick ones in all of them, other types in some."""
        for number in range(int(ENQUEUE_SECONDS / BATCH_SECONDS)):
            types = ["quick"] * 5
            if number in SLOW_AND_FLAKY:
                types += ["slow", "flaky"]
            if number in HOPELESS:
                types.append("hopeless")
            if number in POISON:
                types.append("poison")
            yield [self.request(type) for type in types]

    def request(self, type: str) -> JobRequest:
        payload = {"log": str(self.log.file), "seconds": 2.5}
        # Jobs that run beside a poison job lose attempts, so they get more of them.
        return JobRequest(type=type, payload=payload, max_attempts=3 if type in {"hopeless", "poison"} else 20)

    def kill_a_busy_worker(self) -> bool:
        """Kill the worker with the most running handlers, if any handler runs."""
        effects = self.log.read()
        begun = {(effect.pid, effect.job, effect.token) for effect in effects if effect.what == "begin"}
        ended = {(effect.pid, effect.job, effect.token) for effect in effects if effect.what in {"done", "failed"}}
        alive = {member.process.pid for member in self.fleet.members}
        busy = [pid for pid, _, _ in begun - ended if pid in alive]
        if busy:
            self.fleet.kill(max(busy, key=busy.count))
        return bool(busy)

    def is_done(self) -> bool:
        return all(job.status in FINAL for job in self.jobs())

    def show(self) -> None:
        statuses = [job.status for job in self.jobs()]
        running, ended = statuses.count(Status.PROCESSING), statuses.count(Status.SUCCEEDED)
        dead = statuses.count(Status.DEAD)
        waiting = len(statuses) - running - ended - dead
        counts = {"accepted": len(self.accepted), "waiting": waiting, "running": running}
        self.display.count({**counts, "succeeded": ended, "dead": dead})

    def ledger(self) -> Ledger:
        jobs = self.jobs()
        attempts = self.driver.inspector.attempts([job.id for job in jobs])
        return ledger(
            [str(job_id) for job_id in self.accepted],
            {str(job.id): job.status for job in jobs},
            [attempt.outcome for attempt in attempts],
            self.log.read(),
        )

    def jobs(self) -> list[JobSummary]:
        found: list[JobSummary] = []
        page = self.driver.inspector.find(JobFilter(), limit=FIND_BATCH)
        while True:
            found += page.jobs
            if page.after is None:
                return found
            page = self.driver.inspector.find(JobFilter(), limit=FIND_BATCH, after=page.after)
