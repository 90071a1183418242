"""Settles the outcomes of attempts in batches."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

from taskharbor.core.errors import OutcomeNotStorable, TaskHarborError
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled, Skipped, new_settlements
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.observability.failure_log import STORE
from taskharbor.observability.job_log import job_fields
from taskharbor.runtime import MIN_PAUSE, NO_PAUSE
from taskharbor.worker.config import WORKER_BATCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.drivers.base import Driver, SettleAnswer
    from taskharbor.runtime import Runtime
    from taskharbor.service import ServiceLoops
    from taskharbor.worker.execution import Execution, ExecutionSlots
    from taskharbor.worker.hooks import AttemptHooks
    from taskharbor.worker.statistics import AttemptStatistics

    Batch = list[tuple[Execution, Outcome]]
    Answer = Settled | TaskHarborError | None

_LOG: Final = logging.getLogger("taskharbor.worker")
IDLE_PAUSE: Final = timedelta(seconds=60)
FIRST_RETRY_SECONDS: Final = 0.25
MAX_RETRY_SECONDS: Final = 1.0
FIRST_UNLOCK_SECONDS: Final = 0.01
"""The first retry of a locked row. A heartbeat that extends the lease locks the row for about a millisecond."""
MAX_SEPARATE_RETRIES: Final = 500
"""With this many outcomes to retry separately, slots are freed only after their outcomes are committed."""


@dataclass(slots=True, eq=False)
class SeparateRetry:
    """Outcomes that are retried in a call of their own, so that they delay no others."""

    batch: Batch
    due_at: float
    pause: float


class Recorder:
    """Settles outcomes. Outcomes that arrive during one statement are settled together by the next one.

    An execution is removed only after its outcome is committed or refused. Its slot is freed when the
    outcome is sent, unless the last call failed. After a lost reply the same settlement is sent
    again: the lease token shows whether it was recorded.

    A job becomes a dead letter because of its outcome only if the store cannot hold the outcome's data.
    After any other error the outcome is retried, with growing pauses, until the lease expires.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        slots: ExecutionSlots,
        loops: ServiceLoops,
        hooks: AttemptHooks,
        *,
        statistics: AttemptStatistics,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._slots = slots
        self._loops = loops
        self._hooks = hooks
        self._statistics = statistics
        self._lock = runtime.lock()
        self._unsettled: deque[tuple[Execution, Outcome]] = deque()
        self._separate_retries: list[SeparateRetry] = []
        self._pause_seconds = 0.0  # above zero: the last call failed, and nothing is sent before _resumes_at
        self._resumes_at = 0.0

    def put(self, execution: Execution, outcome: Outcome | None) -> None:
        """Record an outcome; with None, only remove the execution. Only the first outcome of an attempt counts.

        The recorder sees the outcome at once. A buffer for the handlers that end in one cycle of the event loop would
        save 0.3 µs for each, but a handler that blocks the loop would hold back the outcomes of the others.
        """
        if execution.is_slot_lost:
            self._hooks.ended(execution)
        with self._lock:
            if execution.is_settling:
                return
            execution.is_settling = True
            execution.ended_at = self._runtime.monotonic()
            if outcome is not None:
                self._unsettled.append((execution, outcome))
            # Inside the lock: of two concurrent calls, exactly one must see itself as the first. After the append: the
            # recorder pops without the lock, and may have emptied the queue and begun to wait before it.
            is_first = len(self._unsettled) == 1
        if outcome is None:
            self._release_settled([(execution, outcome)], [None])
        elif is_first:
            self._loops.wake("recorder")

    def _release_settled(self, batch: Sequence[tuple[Execution, Outcome | None]], answers: Sequence[Answer]) -> None:
        self._slots.remove([execution for execution, _ in batch])
        self._wake_source()
        self._statistics.count(batch, answers)
        self._hooks.recorded(batch, answers)

    def _wake_source(self) -> None:
        """Wake the source if it waits for slots; otherwise it would claim nothing, and delay the recorder."""
        if self._slots.is_source_waiting or self._slots.is_draining:
            self._loops.wake("source")

    def tick(self) -> timedelta:
        now = self._runtime.monotonic()
        if now >= self._resumes_at:
            if batch := self._next_batch():
                self._free_slots(batch)
                self._record(batch, retry=None)
            self._run_separate_retries(now)
        return self._next_pause()

    def _next_batch(self) -> Batch:
        """Remove the next batch. It may have outcomes of two leases of a job: the store accepts the valid one."""
        unsettled = self._unsettled
        batch = [unsettled.popleft() for _ in range(min(len(unsettled), WORKER_BATCH))]
        if len(batch) > STORE_BATCH and any(outcome.result is not None for _, outcome in batch):
            # A statement with results takes time in proportion to the square of its size.
            unsettled.extendleft(reversed(batch[STORE_BATCH:]))
            del batch[STORE_BATCH:]
        return batch

    def _free_slots(self, batch: Batch) -> None:
        """Free the slots of a batch that is about to be sent, unless the store does not accept outcomes."""
        if not self._pause_seconds and sum(len(each.batch) for each in self._separate_retries) < MAX_SEPARATE_RETRIES:
            self._slots.free([execution for execution, _ in batch])
            self._wake_source()

    def _run_separate_retries(self, now: float) -> None:
        for each in [each for each in self._separate_retries if each.due_at <= now]:
            if not self._is_paused:
                self._separate_retries.remove(each)
                self._record(each.batch, retry=each)

    @property
    def _is_paused(self) -> bool:
        return self._runtime.monotonic() < self._resumes_at

    def _record(self, batch: Batch, *, retry: SeparateRetry | None) -> None:
        try:
            settlements = new_settlements([(execution.claim.lease, outcome) for execution, outcome in batch])
            answers = self._driver.settle(settlements)
        except TaskHarborError as error:  # unavailable, or of another version: all outcomes wait
            self._loops.failures.unavailable(STORE, error)
            self._back_off()
            self._put_back(batch, retry, error)
        except Exception as error:  # noqa: BLE001  of the driver or of user code; a single outcome may be the cause
            self._loops.failures.unexpected("recording outcomes", error)
            if retry is None:
                self._back_off()
            half = len(batch) // 2
            for part in filter(None, (batch[:half], batch[half:])):
                self._retry_separately(part, _next_retry_seconds(retry, FIRST_RETRY_SECONDS), error)
        except BaseException:
            self._unsettled.extendleft(reversed(batch))
            raise
        else:
            self._pause_seconds = 0.0
            self._loops.failures.available(STORE)
            self._process_answers(batch, answers, retry)

    def _back_off(self) -> None:
        self._pause_seconds = min(max(2 * self._pause_seconds, FIRST_RETRY_SECONDS), MAX_RETRY_SECONDS)
        self._resumes_at = self._runtime.monotonic() + self._pause_seconds

    def _put_back(self, batch: Batch, retry: SeparateRetry | None, error: Exception) -> None:
        if retry is None:
            self._unsettled.extendleft(reversed(self._drop_expired(batch, error)))
        else:
            self._retry_separately(batch, retry.pause, error)

    def _retry_separately(self, batch: Batch, pause: float, cause: object) -> None:
        if held := self._drop_expired(batch, cause):
            pause = min(pause, MAX_RETRY_SECONDS)
            self._separate_retries.append(SeparateRetry(held, self._runtime.monotonic() + pause, pause))

    def _process_answers(self, batch: Batch, answers: Sequence[SettleAnswer], retry: SeparateRetry | None) -> None:
        """Remove executions whose outcomes were recorded or refused; retry the others separately."""
        if len(answers) == len(batch) and _RECORDED.issuperset(map(type, answers)):  # the usual case
            self._release_settled(batch, cast("Sequence[Settled]", answers))
            return
        done: Batch = []
        done_answers: list[Answer] = []
        locked: Batch = []
        rejected: Batch = []
        for ended, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Skipped):
                locked.append(ended)
            elif isinstance(answer, OutcomeNotStorable):
                rejected.append((ended[0], _dead_letter_outcome(answer)))
            else:
                done.append(ended)
                done_answers.append(answer)
        self._retry_separately(
            locked, _next_retry_seconds(retry, FIRST_UNLOCK_SECONDS), "row locked by another transaction"
        )
        self._retry_separately(
            rejected, 0.0 if retry is None else _next_retry_seconds(retry, FIRST_RETRY_SECONDS), "rejected by the store"
        )
        if done:
            self._release_settled(done, done_answers)

    def _drop_expired(self, batch: Batch, cause: object) -> Batch:
        """Return the outcomes whose leases may still hold; drop the others, whose jobs will be reclaimed."""
        now = self._runtime.monotonic()
        expired = [(execution, outcome) for execution, outcome in batch if execution.ends_at <= now]
        for execution, outcome in expired:
            job = execution.claim.job
            text = "job %s (%s) attempt %d of %d: outcome not recorded before its lease expired: %s"
            _LOG.error(text, job.id, job.type, job.attempt_count, job.max_attempts, cause, extra=job_fields(job))
            self._release_settled([(execution, outcome)], [None])
        return [(execution, outcome) for execution, outcome in batch if execution.ends_at > now] if expired else batch

    def _next_pause(self) -> timedelta:
        due = [each.due_at for each in self._separate_retries] + ([0.0] if self._unsettled else [])
        if not due:
            return IDLE_PAUSE
        seconds = max(min(due), self._resumes_at) - self._runtime.monotonic()
        # A pause below a microsecond would be rounded to zero, and the next tick would find nothing due.
        return max(timedelta(seconds=seconds), MIN_PAUSE) if seconds > 0 else NO_PAUSE


_RECORDED: Final = frozenset({Settled})


def _next_retry_seconds(retry: SeparateRetry | None, first: float) -> float:
    return first if retry is None else max(first, 2 * retry.pause)


def _dead_letter_outcome(rejected: OutcomeNotStorable) -> Outcome:
    return Outcome.fail(f"its outcome cannot be recorded: {rejected.reason}")
