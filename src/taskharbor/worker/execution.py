"""The jobs that a worker has in hand, from their claim to their committed outcome."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim
    from taskharbor.runtime import Runtime
    from taskharbor.worker.message_acks import ReceivedMessage


class StopReason(Enum):
    """Why an attempt shall stop. One that came first stays, but for a lost lease, which beats all."""

    CANCEL = "cancel requested"
    TIMEOUT = "timed out"
    SHUTDOWN = "worker shutting down"
    LOST = "lease lost"


class Execution:
    """One job in hand. ``ends_at`` is when its lease is over at the latest, on this process's own clock.

    ``queue`` is where it was found, by the message in ``received`` or without one. A forged message
    may name a job of another queue. ``thread`` is the thread that runs its handler; None if that is
    async, has not begun or has returned.
    """

    __slots__ = (
        "_stop",
        "claim",
        "ends_at",
        "has_room",
        "is_completed",
        "is_settling",
        "is_slot_lost",
        "is_timed_out",
        "queue",
        "received",
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
        received: ReceivedMessage | None = None,
    ) -> None:
        self.claim = claim
        self.queue = queue or claim.job.queue
        self.received = received
        self.ends_at = ends_at
        self.times_out_at = times_out_at
        self.is_settling = False
        self.has_room = True  # until its outcome is on its way to the store
        self.is_completed = False  # by its handler, in a transaction of the handler's own
        self.thread: int | None = None
        self.is_timed_out = False
        self.is_slot_lost = False  # its sync handler runs on, long after its timeout
        self.stop_reason: StopReason | None = None
        self._stop: Callable[[], None] | None = None

    def set_stop(self, stop: Callable[[], None]) -> None:
        """Learn how its handler is asked to stop; that may have been wished before."""
        self._stop = stop
        if self.stop_reason is not None:
            stop()

    def clear_stop(self) -> None:
        """Forget how it is stopped: that leads back here, and only a search for cycles would find such a ring."""
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
        """Note that its sync handler has returned or raised; tell whether that was after its timeout."""
        self.thread = None
        is_late = self.times_out_at is not None and self.times_out_at <= now
        if is_late:
            self.time_out()
        return is_late


class ExecutionSlots:
    """All jobs in hand, and room for more: of all queues together, and of each."""

    def __init__(self, runtime: Runtime, *, concurrency: int, queues: Mapping[str, int]) -> None:
        self._lock = runtime.lock()
        self.concurrency: Final = concurrency
        self._limits: Final = queues
        self._by_queue = dict.fromkeys(queues, 0)
        self._held: dict[Execution, None] = {}  # a job whose lease was lost may be in hand a second time
        self._reserved = self._settling = 0
        self.departures = 0
        self.is_source_waiting = False
        """Whether jobs may be left in the store for lack of slots, so that a freed slot must wake the source."""
        self.is_draining = False

    def acquire(self, queue: str, most: int) -> int:
        """Set room aside for up to *most* jobs of *queue*, before they are asked for; return for how many."""
        with self._lock:
            room = max(0, min(self._free, self._limits[queue] - self._by_queue[queue], most))
            self._reserved += room
            self._by_queue[queue] += room
            return room

    def has_free(self, queue: str) -> bool:
        with self._lock:
            return self._free > 0 and self._limits[queue] > self._by_queue[queue]

    @property
    def is_full(self) -> bool:
        """Whether there is no room for a job of any queue."""
        with self._lock:
            return self._free <= 0

    @property
    def _free(self) -> int:
        return self.concurrency - (len(self._held) - self._settling) - self._reserved

    @property
    def lost_slots(self) -> int:
        """How many slots are kept by handlers that did not stop at their timeout."""
        with self._lock:
            return sum(execution.is_slot_lost for execution in self._held)

    def fill(self, queue: str, room: int, executions: list[Execution]) -> None:
        """Put *hands* into the room that was set aside, and give back the rest of it."""
        with self._lock:
            self._reserved -= room
            self._by_queue[queue] -= room - len(executions)
            self._held.update(dict.fromkeys(executions))

    def mark_lost(self, job_ids: Collection[JobId]) -> None:
        """Stop the attempts of these jobs: they were taken anew, so the leases under which they run are over."""
        numbers = {job_id.int for job_id in job_ids}  # a UUID takes three times as long to look up
        for execution in self.all() if job_ids else ():
            if execution.claim.job.id.int in numbers:
                execution.stop(StopReason.LOST)

    def free(self, executions: Iterable[Execution]) -> None:
        """Give the room of *hands* to others: their handlers have ended, and their outcomes are on their way."""
        with self._lock:
            self.departures += 1
            for execution in executions:
                if execution in self._held and execution.has_room:
                    execution.has_room = False
                    self._settling += 1
                    self._by_queue[execution.queue] -= 1

    def remove(self, executions: Iterable[Execution]) -> None:
        with self._lock:
            self.departures += 1
            for execution in executions:
                if execution in self._held:
                    execution.clear_stop()
                    del self._held[execution]
                    self._by_queue[execution.queue] -= execution.has_room
                    self._settling -= not execution.has_room

    def all(self) -> list[Execution]:
        with self._lock:
            return list(self._held)

    def __len__(self) -> int:
        return len(self._held)
