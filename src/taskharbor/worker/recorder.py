"""Writing outcomes down, many in one statement."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import OutcomeNotStorable, TaskHarborError
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement, Skipped
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.runtime import MIN_PAUSE, NO_PAUSE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.results import Settled
    from taskharbor.drivers.base import Driver, SettleAnswer
    from taskharbor.runtime import Runtime
    from taskharbor.service import ServiceLoops
    from taskharbor.worker.execution import Execution, ExecutionSlots
    from taskharbor.worker.hooks import AttemptHooks

    Batch = list[tuple[Execution, Outcome]]
    Answer = Settled | TaskHarborError | None

_LOG: Final = logging.getLogger("taskharbor.worker")
IDLE_PAUSE: Final = timedelta(seconds=60)
FIRST_RETRY_SECONDS: Final = 0.25
MAX_RETRY_SECONDS: Final = 1.0
FIRST_UNLOCK_SECONDS: Final = 0.01
"""Until a locked row is tried again, at first: a heartbeat that extends the lease locks it for about a millisecond."""
MAX_SEPARATE_RETRIES: Final = 500
"""Outcomes that wait by themselves, from which on no slot is freed before its outcome is committed."""


@dataclass(slots=True, eq=False)
class SeparateRetry:
    """Outcomes that are tried again by themselves, so that no other waits for them."""

    batch: Batch
    due_at: float
    pause: float


class Recorder:
    """Settles what has ended; while one statement is under way, what ends meanwhile gathers for the next.

    An outcome counts, and its job is let go, only when it is committed. Its slot is free for another
    job as soon as it is on its way, unless the store did not answer the last time. A lost reply is
    resolved by saying the same again: the token tells whether it was recorded.

    Only a success or a refusal of the store ends the wait for an outcome. A job dies of its outcome
    only if the store says that it cannot hold that one's data. After any other error the outcome
    is tried again, with longer pauses, as long as the lease holds.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        slots: ExecutionSlots,
        loops: ServiceLoops,
        hooks: AttemptHooks,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._slots = slots
        self._loops = loops
        self._hooks = hooks
        self._lock = runtime.lock()
        self._ended: deque[tuple[Execution, Outcome]] = deque()
        self._separate: list[SeparateRetry] = []
        self._pause = 0.0  # above zero: the last call failed, and nothing is asked before _rests_until
        self._rests_until = 0.0

    def put(self, execution: Execution, outcome: Outcome | None) -> None:
        """Record an outcome; with None, only let the job go. Only the first outcome of an attempt counts."""
        self._hooks.ended(execution)
        with self._lock:
            if execution.is_settling:
                return
            execution.is_settling = True
            if outcome is not None:
                self._ended.append((execution, outcome))
            # Inside the lock: of two concurrent calls, exactly one must see itself as the first.
            is_first = len(self._ended) == 1
        if outcome is None:
            self._release_settled([(execution, outcome)], [None])
        elif is_first:
            self._loops.wake("recorder")

    def _release_settled(self, batch: Sequence[tuple[Execution, Outcome | None]], answers: Sequence[Answer]) -> None:
        self._slots.remove([execution for execution, _ in batch])
        self._wake_source()
        self._hooks.recorded(batch, answers)

    def _wake_source(self) -> None:
        """Wake the source if it waits for slots; otherwise it would find nothing, and delay the recorder."""
        if self._slots.is_source_waiting or self._slots.is_draining:
            self._loops.wake("source")

    def tick(self) -> timedelta:
        now = self._runtime.monotonic()
        if now >= self._rests_until:
            if batch := self._next_batch():
                self._make_room(batch)
                self._record(batch, apart=None)
            self._run_separate_retries(now)
        return self._next_pause()

    def _next_batch(self) -> Batch:
        """Take what has ended. Of a job that was in hand twice one outcome waits: a call names each job once."""
        batch: Batch = []
        later: Batch = []
        jobs: set[int] = set()  # as numbers: a UUID takes three times as long to look up
        while self._ended and len(batch) < STORE_BATCH:
            ended = self._ended.popleft()
            job_id = ended[0].claim.job.id.int
            (later if job_id in jobs else batch).append(ended)
            jobs.add(job_id)
        self._ended.extendleft(reversed(later))
        return batch

    def _make_room(self, batch: Batch) -> None:
        """Free the slots of what is on its way, unless the store takes no outcomes: it must give no more jobs then."""
        if not self._pause and sum(len(each.batch) for each in self._separate) < MAX_SEPARATE_RETRIES:
            self._slots.free(execution for execution, _ in batch)
            self._wake_source()

    def _run_separate_retries(self, now: float) -> None:
        for each in [each for each in self._separate if each.due_at <= now]:
            if not self._rests:
                self._separate.remove(each)
                self._record(each.batch, apart=each)

    @property
    def _rests(self) -> bool:
        return self._runtime.monotonic() < self._rests_until

    def _record(self, batch: Batch, *, apart: SeparateRetry | None) -> None:
        try:
            answers = self._driver.settle([Settlement(execution.claim.lease, outcome) for execution, outcome in batch])
        except TaskHarborError as error:  # away, or of another version: all outcomes wait
            self._rest()
            self._keep(batch, apart, error)
        except Exception as error:  # noqa: BLE001  the store's or a user's function's; one outcome may be the cause of it
            _LOG.error("recording %d outcomes failed; retrying: %r", len(batch), error, exc_info=apart is None)
            if apart is None:
                self._rest()
            half = len(batch) // 2
            for part in filter(None, (batch[:half], batch[half:])):
                self._retry_separately(part, _longer(apart, FIRST_RETRY_SECONDS), error)
        except BaseException:
            self._ended.extendleft(reversed(batch))
            raise
        else:
            self._pause = 0.0
            self._answered(batch, answers, apart)

    def _rest(self) -> None:
        self._pause = min(max(2 * self._pause, FIRST_RETRY_SECONDS), MAX_RETRY_SECONDS)
        self._rests_until = self._runtime.monotonic() + self._pause

    def _keep(self, batch: Batch, apart: SeparateRetry | None, error: Exception) -> None:
        if apart is None:
            self._ended.extendleft(reversed(self._still_held(batch, error)))
        else:
            self._retry_separately(batch, apart.pause, error)

    def _retry_separately(self, batch: Batch, pause: float, cause: object) -> None:
        if held := self._still_held(batch, cause):
            pause = min(pause, MAX_RETRY_SECONDS)
            self._separate.append(SeparateRetry(held, self._runtime.monotonic() + pause, pause))

    def _answered(self, batch: Batch, answers: Sequence[SettleAnswer], apart: SeparateRetry | None) -> None:
        """Let go at once of what is recorded or refused; the rest is tried again by itself."""
        done: Batch = []
        told: list[Answer] = []
        locked: Batch = []
        rejected: Batch = []
        for ended, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Skipped):
                locked.append(ended)
            elif isinstance(answer, OutcomeNotStorable):
                rejected.append((ended[0], _dead_letter_outcome(answer)))
            else:
                done.append(ended)
                told.append(answer)
        self._retry_separately(locked, _longer(apart, FIRST_UNLOCK_SECONDS), "its row is locked by another transaction")
        self._retry_separately(
            rejected, 0.0 if apart is None else _longer(apart, FIRST_RETRY_SECONDS), "it was rejected"
        )
        if done:
            self._release_settled(done, told)

    def _still_held(self, batch: Batch, cause: object) -> Batch:
        """Return what can still be recorded; the rest is the store's to find out, once the leases are over."""
        now = self._runtime.monotonic()
        late = [(execution, outcome) for execution, outcome in batch if execution.ends_at <= now]
        for execution, outcome in late:
            _LOG.error(
                "an outcome of job %s was not recorded before its lease ended: %s", execution.claim.job.id, cause
            )
            self._release_settled([(execution, outcome)], [None])
        return [(execution, outcome) for execution, outcome in batch if execution.ends_at > now] if late else batch

    def _next_pause(self) -> timedelta:
        due = [each.due_at for each in self._separate] + ([0.0] if self._ended else [])
        if not due:
            return IDLE_PAUSE
        seconds = max(min(due), self._rests_until) - self._runtime.monotonic()
        # A pause of less than a microsecond would be none, and the next tick would find nothing due.
        return max(timedelta(seconds=seconds), MIN_PAUSE) if seconds > 0 else NO_PAUSE


def _longer(apart: SeparateRetry | None, first: float) -> float:
    return first if apart is None else max(first, 2 * apart.pause)


def _dead_letter_outcome(rejected: OutcomeNotStorable) -> Outcome:
    _LOG.error("%s; the job becomes a dead letter", rejected)
    return Outcome.fail(f"its outcome cannot be recorded: {rejected.reason}")
