"""Executions, from the claim to the committed outcome, and the slots that limit them."""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from taskharbor.core.model import Claim
    from taskharbor.observability.spans import AttemptSpan
    from taskharbor.runtime import Runtime
    from taskharbor.worker.message_acks import ReceivedJob
    from taskharbor.worker.prefetch import Prefetch


MIN_CLAIM_FRACTION: Final = 0.25
"""While jobs that were claimed ahead wait, no fewer than this part of their number are claimed."""


class StopReason(Enum):
    """Why an attempt must stop. The first reason stays, but a lost lease replaces any other."""

    CANCEL = "cancel requested"
    TIMEOUT = "timed out"
    SHUTDOWN = "worker shutting down"
    LOST = "lease lost"


class Execution:
    """One attempt in memory. ``ends_at`` is when its lease expires at the latest, by this process's monotonic clock.

    ``queue`` is the queue that it was claimed from, and ``received`` is its part of a message, if any. A forged
    message may name a job of another queue. ``thread`` is the thread that runs a sync handler; None
    if the handler is async, has not begun or has returned. ``error`` is the exception that ended
    the attempt, for the log and for hooks. ``claimed_at`` is when its claim was answered. ``cancel_read_at`` is when
    it was last read that no cancel was requested; a claim and an extension say that, too.
    """

    __slots__ = (
        "_stop",
        "began_at",
        "cancel_read_at",
        "claim",
        "claimed_at",
        "ended_at",
        "ends_at",
        "error",
        "holds_slot",
        "is_completed",
        "is_settling",
        "is_slot_lost",
        "is_timed_out",
        "queue",
        "received",
        "span",
        "stop_reason",
        "thread",
        "times_out_at",
    )

    def __init__(
        self,
        claim: Claim,
        *,
        ends_at: float,
        times_out_at: float | None,
        queue: str | None = None,
        received: ReceivedJob | None = None,
        claimed_at: float | None = None,
    ) -> None:
        self.claim = claim
        self.claimed_at = claimed_at
        self.queue = queue or claim.job.queue
        self.received = received
        self.ends_at = ends_at
        self.times_out_at = times_out_at  # until its handler begins: the earliest possible time
        self.began_at: float | None = None  # when its handler was called
        self.ended_at = 0.0
        self.error: BaseException | None = None
        self.cancel_read_at = -inf
        self.is_settling = False
        self.holds_slot = True  # until its outcome is sent to the store
        self.is_completed = False  # by `Context.complete_in`
        self.thread: int | None = None
        self.is_timed_out = False
        self.span: AttemptSpan | None = None  # with tracing only
        self.is_slot_lost = False  # its handler still runs one lease after its timeout
        self.stop_reason: StopReason | None = None
        self._stop: Callable[[], None] | None = None

    @property
    def seconds(self) -> float | None:
        """How long the handler ran; None if it was not called."""
        return None if self.began_at is None else self.ended_at - self.began_at

    def begin(self, now: float) -> None:
        """Record that its handler is called. Its timeout counts from now: it may have waited since its claim."""
        self.began_at = now
        if (timeout := self.claim.job.timeout) is not None:
            self.times_out_at = now + timeout.total_seconds()

    def set_stop(self, stop: Callable[[], None]) -> None:
        """Set the callback that stops the handler; call it now if a stop was requested before."""
        self._stop = stop
        if self.stop_reason is not None:
            stop()

    def clear_stop(self) -> None:
        """Drop the stop callback; it forms a reference cycle."""
        self._stop = None

    def stop(self, reason: StopReason) -> None:
        """Ask the handler to stop."""
        if self.stop_reason is None or reason is StopReason.LOST:
            self.stop_reason = reason
            if self._stop is not None:
                self._stop()

    def time_out(self) -> None:
        """Ask the handler to stop because its timeout has passed."""
        self.is_timed_out = True
        self.stop(StopReason.TIMEOUT)

    def returned(self, now: float) -> bool:
        """Record that its handler has returned or raised; return whether that was after its timeout."""
        self.thread = None
        is_late = self.times_out_at is not None and self.times_out_at <= now
        if is_late:
            self.time_out()
        return is_late


class ExecutionSlots:
    """The executions of a worker and its free slots, in total and for each queue.

    Jobs that are claimed ahead (`Prefetch`) get additional slots.
    """

    def __init__(self, runtime: Runtime, prefetch: Prefetch, *, concurrency: int, queues: Mapping[str, int]) -> None:
        self._lock = runtime.lock()
        self.prefetch: Final = prefetch
        self.concurrency: Final = concurrency
        self._limits: Final = queues
        self._by_queue = dict.fromkeys(queues, 0)
        self._held: dict[Execution, None] = {}  # a job whose lease was lost may be claimed a second time
        self._last_of: dict[int, Execution] = {}  # of each job; a UUID as key takes three times as long
        self._reserved = self._settling = 0
        self.departures = 0
        """How often executions freed their slots or were removed."""
        self.recorded = 0
        """How many attempts have begun and ended."""
        self._is_source_waiting = False
        self.is_draining = False

    def acquire(self, queue: str, limit: int) -> int:
        """Acquire up to *limit* slots for jobs of *queue* before they are claimed; return how many."""
        with self._lock:
            slots = min(self._free_for(queue), limit)
            self._reserved += slots
            self._by_queue[queue] += slots
            return slots

    def has_free(self, queue: str) -> bool:
        with self._lock:
            return self._free_for(queue) > 0

    @property
    def is_full(self) -> bool:
        """Whether no slot is free for a job of any queue."""
        with self._lock:
            return self._free <= 0

    @property
    def is_source_waiting(self) -> bool:
        """Whether the store may hold due jobs that found no free slot, so that a freed slot must wake the source."""
        return self._is_source_waiting and not self.prefetch.is_stocked

    @is_source_waiting.setter
    def is_source_waiting(self, is_waiting: bool) -> None:
        self._is_source_waiting = is_waiting

    def _free_for(self, queue: str) -> int:
        ahead = self.prefetch.ahead()
        if self.prefetch.is_stocked:
            return 0
        free = max(0, ahead + min(self._free, self._limits[queue] - self._by_queue[queue]))
        # A claim of a few jobs takes half as long as one of a thousand. Those that wait last longer.
        return 0 if len(self.prefetch) and free < ahead * MIN_CLAIM_FRACTION else free

    @property
    def _free(self) -> int:
        return self.concurrency - (len(self._held) - self._settling) - self._reserved

    @property
    def lost_slots(self) -> int:
        """How many slots are held by handlers that did not stop after their timeout."""
        with self._lock:
            return sum(execution.is_slot_lost for execution in self._held)

    @property
    def busy_slots(self) -> int:
        """How many slots run a handler that is not lost."""
        with self._lock:
            return sum(
                execution.began_at is not None and execution.holds_slot and not execution.is_slot_lost
                for execution in self._held
            )

    def fill(self, queue: str, slots: int, executions: list[Execution]) -> None:
        """Put *executions* into acquired slots, and free the rest of these slots.

        Stop older attempts of their jobs: a new claim means that the leases of these were lost.
        """
        lost: list[Execution] = []
        with self._lock:
            self._reserved -= slots
            self._by_queue[queue] -= slots - len(executions)
            self._held.update(dict.fromkeys(executions))
            for execution in executions:
                number = execution.claim.job.id.int
                if number in self._last_of:
                    lost.append(self._last_of[number])
                self._last_of[number] = execution
        for execution in lost:
            execution.stop(StopReason.LOST)

    def free(self, executions: Iterable[Execution]) -> None:
        """Free the slots of *executions* whose outcomes are being sent to the store."""
        with self._lock:
            self.departures += 1
            for execution in executions:
                if execution in self._held and execution.holds_slot:
                    execution.holds_slot = False
                    self._settling += 1
                    self._by_queue[execution.queue] -= 1

    def remove(self, executions: Iterable[Execution]) -> None:
        recorded = 0
        with self._lock:
            self.departures += 1
            for execution in executions:
                if execution in self._held:
                    execution.clear_stop()
                    del self._held[execution]
                    number = execution.claim.job.id.int
                    if self._last_of.get(number) is execution:
                        del self._last_of[number]
                    recorded += execution.began_at is not None
                    self._by_queue[execution.queue] -= execution.holds_slot
                    self._settling -= not execution.holds_slot
            self.recorded += recorded
            self.prefetch.count_recorded(recorded)

    def all(self) -> list[Execution]:
        with self._lock:
            return list(self._held)

    def __len__(self) -> int:
        return len(self._held)
