"""The kinds of simulated jobs, their handlers, and the middleware that records when handlers run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.outcome import Cancel, DeadLetter, Retry, Snooze
from taskharbor.core.retry import Exponential, RetryPolicy
from taskharbor.testing.simulation.history import HandlerBegan, HandlerEnded
from taskharbor.testing.simulation.world import EPOCH, ProcessKilled

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Job
    from taskharbor.testing.simulation.faults import FaultyStore
    from taskharbor.testing.simulation.history import History
    from taskharbor.testing.simulation.runtime import SimulatedRuntime
    from taskharbor.testing.simulation.world import Process, World
    from taskharbor.worker import Context, Worker

SLICE_SECONDS: Final = 0.25
SLOT_LOST_SECONDS: Final = 7.0
"""Time after the timeout of a handler in which its slot must count as lost: a lease, plus 2 s for delays."""
BACKOFF: Final = Exponential(base=timedelta(seconds=0.5), cap=timedelta(seconds=4))
POLICY: Final = RetryPolicy(backoff=BACKOFF)
STOPPABLE: Final = frozenset({"quick", "slow", "flaky", "failing", "snoozing", "endless", "cancels_itself"})
"""The kinds that end as soon as they are stopped."""
UNKNOWN: Final = "unknown"
STUCK: Final = "stuck"
SYNC: Final = frozenset({"plain", "plain_slow", "deaf", STUCK})
"""The kinds whose return after the timeout does not count as success."""
UNSTOPPABLE: Final = SYNC | {"stubborn"}
"""The kinds that may run on after their timeout, so that their slots are lost."""
NEVER_RETURNS: Final = 3
"""The value of ``n`` in the payload of a stuck job that never returns."""
STATELESS: Final = ("quick", "plain", "unstorable", "exits", "hopeless", "called_off", "cancels_itself", "failing")
KINDS: Final = (
    *STATELESS,
    "slow",
    "stubborn",
    "blocking",
    "plain_slow",
    "deaf",
    STUCK,
    "flaky",
    "snoozing",
    "endless",
    "poison",
    UNKNOWN,
)


class HandlerMonitor:
    """A middleware that records which handlers run in which process."""

    def __init__(self, history: History, store: FaultyStore, concurrency: int) -> None:
        self._history = history
        self._store = store
        self._concurrency = concurrency
        self.begun: set[tuple[JobId, Token]] = set()
        self.running: dict[tuple[JobId, Token], tuple[Process, float, str]] = {}
        self._timeouts: dict[JobId, float] = {}
        self.busy_at: dict[str, float] = {}
        """When a handler last began or ended in a process."""

    def count(self, process: Process) -> int:
        return sum(1 for other, _, _ in self.running.values() if other is process)

    def lost_slots(self, process: Process) -> int:
        """Return how many handlers of an undisturbed process run far longer than their timeout."""
        now = self._history.world.now
        return sum(
            1
            for (job_id, _), (other, began, kind) in self.running.items()
            if other is process and kind in UNSTOPPABLE and not process.is_disturbed(began)
            if (timeout := self._timeouts.get(job_id)) is not None and now > began + timeout + SLOT_LOST_SECONDS
        )

    def forget(self, process: Process) -> None:
        self.running = {key: value for key, value in self.running.items() if value[0] is not process}

    def middleware(self, process: Process) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def sync_middleware(job: Job, ctx: Context, call: Callable[..., Any]) -> Any:
            self._begin(process, job, ctx)
            try:
                result = call(job, ctx)
            except BaseException as error:
                self._end(process, job, ctx, error=error)
                raise
            self._end(process, job, ctx, result=result)
            return result

        async def async_middleware(job: Job, ctx: Context, call: Callable[..., Any]) -> Any:
            self._begin(process, job, ctx)
            try:
                result = await call(job, ctx)
            except BaseException as error:
                self._end(process, job, ctx, error=error)
                raise
            self._end(process, job, ctx, result=result)
            return result

        return sync_middleware, async_middleware

    def _begin(self, process: Process, job: Job, ctx: Context) -> None:
        if process.is_dead:  # asyncio keeps the error that ended the task before this one
            raise ProcessKilled
        now, token, row = self._history.world.store_time(), ctx.claim.lease.token, self._store.rows.get(job.id)
        ends_at = None if row is None else row.lease_expires_at
        is_held = row is not None and row.lease_token == token and ends_at is not None and ends_at > now
        began = HandlerBegan(
            at=self._history.world.true_time(),
            process=process.name,
            job_id=job.id,
            attempt=job.attempt_count,
            token=token,
            is_held=is_held or self._store.is_in_doubt(job.id, token),
            overlaps=tuple(self._overlaps(job.id)),
        )
        self._history.add(began)
        self.begun.add((job.id, token))
        self.running[job.id, token] = process, self._history.world.now, job.type
        if self.count(process) > self._concurrency:
            self._history.add_violation(f"{process.name} runs {self.count(process)} handlers at once: {began}")
        if job.timeout is not None:
            self._timeouts[job.id] = job.timeout.total_seconds()
        self.busy_at[process.name] = self._history.world.now

    def _overlaps(self, job_id: JobId) -> list[Token]:
        """Return the running attempts of this job that should have stopped: nothing delayed their process."""
        return [
            token
            for (other, token), (process, began, kind) in self.running.items()
            if other == job_id and kind in STOPPABLE and not process.is_disturbed(began)
            if not self._store.is_in_doubt(job_id, token)
        ]

    def _end(
        self, process: Process, job: Job, ctx: Context, *, error: BaseException | None = None, result: Any = None
    ) -> None:
        if process.is_dead:
            return
        token = ctx.claim.lease.token
        del self.running[job.id, token]
        self.busy_at[process.name] = self._history.world.now
        self._history.add(
            HandlerEnded(
                at=self._history.world.true_time(),
                process=process.name,
                job_id=job.id,
                token=token,
                error=None if error is None else type(error).__name__,
                result=result if isinstance(result, dict) else None,
                disturbed_at=EPOCH + timedelta(seconds=max(0.0, process.last_disturbed())),
            )
        )


class Handlers:
    """The handlers of one process, one for each kind of job."""

    def __init__(
        self, process: Process, runtime: SimulatedRuntime, history: History, snooze_counts: dict[JobId, int]
    ) -> None:
        self._process = process
        self._world: World = process.world
        self._events = runtime.events
        self._sleep = runtime.sleep
        self._history = history
        self._snooze_counts = snooze_counts

    def register(self, worker: Worker) -> None:
        for kind in KINDS:
            if kind != UNKNOWN:
                worker.register(kind, getattr(self, kind), policy=POLICY)

    async def quick(self, job: Job, ctx: Context) -> Any:
        return _result(job, ctx)

    def plain(self, job: Job, ctx: Context) -> Any:
        return _result(job, ctx)

    async def slow(self, job: Job, ctx: Context) -> Any:
        await asyncio.sleep(job.data["seconds"])
        return _result(job, ctx)

    async def stubborn(self, job: Job, ctx: Context) -> Any:
        ends_at = self._events.time() + job.data["seconds"]
        while (left := ends_at - self._events.time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        return _result(job, ctx)

    async def blocking(self, job: Job, ctx: Context) -> Any:
        self._process.disturbed_at = self._world.now + job.data["seconds"]  # no other task of this loop runs
        self._events.block(job.data["seconds"])
        return _result(job, ctx)

    def plain_slow(self, job: Job, ctx: Context) -> Any:
        for _ in range(int(job.data["seconds"] / SLICE_SECONDS)):
            ctx.raise_if_cancelled()
            self._world.wait(SLICE_SECONDS)
        return _result(job, ctx)

    def deaf(self, job: Job, ctx: Context) -> Any:
        self._world.wait(job.data["seconds"])
        return _result(job, ctx)

    def stuck(self, job: Job, ctx: Context) -> Any:
        """Run past the timeout. Every third such job never returns."""
        self._sleep(None if job.data["n"] == NEVER_RETURNS else job.data["seconds"])
        return _result(job, ctx)

    async def flaky(self, job: Job, ctx: Context) -> Any:
        if job.attempt_count <= job.data["n"]:
            if job.data["n"] % 2:
                raise Retry("not yet", after=timedelta(seconds=0.7))
            raise ValueError("not yet")
        return _result(job, ctx)

    async def failing(self, _job: Job, _ctx: Context) -> Any:
        raise ValueError("never")

    async def hopeless(self, _job: Job, _ctx: Context) -> Any:
        raise DeadLetter("hopeless")

    async def called_off(self, _job: Job, _ctx: Context) -> Any:
        raise Cancel("canceled")

    async def cancels_itself(self, _job: Job, _ctx: Context) -> Any:
        raise asyncio.CancelledError

    async def exits(self, _job: Job, _ctx: Context) -> Any:
        raise SystemExit

    async def unstorable(self, _job: Job, _ctx: Context) -> Any:
        return object()

    async def snoozing(self, job: Job, ctx: Context) -> Any:
        self._snooze_counts[job.id] = self._snooze_counts.get(job.id, 0) + 1
        if self._snooze_counts[job.id] <= job.data["n"]:
            raise Snooze(after=timedelta(seconds=0.8))
        return _result(job, ctx)

    async def endless(self, _job: Job, _ctx: Context) -> Any:
        await asyncio.sleep(1e6)

    def poison(self, _job: Job, _ctx: Context) -> Any:
        self._history.note(self._process, "is killed by a poison job")
        self._process.kill()
        raise ProcessKilled


def _result(job: Job, ctx: Context) -> dict[str, Any]:
    return {"job": str(job.id), "token": ctx.claim.lease.token.hex}
