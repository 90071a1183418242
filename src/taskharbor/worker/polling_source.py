"""Claims due jobs by polling the store."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable
from taskharbor.observability.failure_log import STORE
from taskharbor.runtime import NO_PAUSE
from taskharbor.worker.config import WORKER_BATCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.core.messages import DeliveryNote
    from taskharbor.worker.claimer import Claimer
    from taskharbor.worker.config import WorkerConfig
    from taskharbor.worker.execution import ExecutionSlots
    from taskharbor.worker.stop_request import StopRequest

MIN_POLL_PAUSE: Final = timedelta(milliseconds=10)
FULL_PAUSE: Final = timedelta(seconds=60)  # the end of an attempt wakes the source
READ_BACK_PAUSE: Final = timedelta(milliseconds=100)
"""Between two tries to read back claims at shutdown, which waits for them for about a second."""


class PollingSource:
    """Acquires slots, then reserves, so that no job waits for long in a worker that cannot run it.

    If a queue filled all slots, it is polled again immediately. If no queue has a due job, the pause
    doubles up to *poll*; a notify ends it. Claims whose reply was lost are read back first.
    """

    def __init__(self, slots: ExecutionSlots, stop: StopRequest, claimer: Claimer, config: WorkerConfig) -> None:
        self._slots = slots
        self._stop = stop
        self._claimer = claimer
        self._queues = list(config.queues)
        self._poll = config.poll
        self._pause = MIN_POLL_PAUSE
        self._departures_when_idle: int | None = None
        self.is_stopped_cleanly = False
        self.is_failing = False
        """Whether the last tick failed, and did not find out which jobs it has claimed."""

    @property
    def is_idle(self) -> bool:
        """Whether the last tick found no job, and no attempt has ended since: its end may make jobs due."""
        return self._departures_when_idle == self._slots.departures

    @property
    def claim_problem(self) -> str:
        """Why claims do not go through; empty if they do."""
        return self._claimer.problem

    @property
    def delivery_notes(self) -> list[DeliveryNote]:
        """None: this source receives no messages."""
        return []

    @property
    def ticks(self) -> dict[str, Callable[[], timedelta]]:
        return {"source": self.tick}

    def tick(self) -> timedelta:
        if self._stop.is_set:
            return self._read_back_last()
        self._claimer.release_overdue()
        pause = self._claim_due()
        return self._slots.prefetch.shortened(pause)

    def _claim_due(self) -> timedelta:
        departures, self._departures_when_idle = self._slots.departures, None
        self.is_failing = False
        try:
            self._claimer.read_back()
            claimed, has_more, is_full = self._reserve_all()
        except StoreUnavailable as error:
            self._claimer.failures.unavailable(STORE, error)
            self.is_failing = True
            return self._next_pause(claimed=False)
        self._departures_when_idle = None if claimed or is_full else departures
        if has_more or (
            self._slots.is_source_waiting and self._slots.departures != departures
        ):  # slots were freed meanwhile
            return NO_PAUSE
        return FULL_PAUSE if is_full else self._next_pause(claimed=claimed)

    def _read_back_last(self) -> timedelta:
        """Read back pending claims before the worker ends; otherwise their jobs would wait until the leases expire."""
        try:
            self._claimer.read_back()
        except StoreUnavailable as error:
            self.is_failing = True
            self._claimer.failures.unavailable(STORE, error)
            self._claimer.drop_expired()
        except Exception as error:  # noqa: BLE001  whatever failed must not delay the shutdown for long
            self.is_failing = True
            self._claimer.failures.unexpected("reading back claims", error)
            self._claimer.drop_expired()
        self.is_stopped_cleanly = self._claimer.has_no_pending
        return FULL_PAUSE if self.is_stopped_cleanly else READ_BACK_PAUSE

    def _next_pause(self, *, claimed: bool) -> timedelta:
        self._pause = MIN_POLL_PAUSE if claimed else min(2 * self._pause, self._poll)
        return self._pause

    def _reserve_all(self) -> tuple[bool, bool, bool]:
        """Poll every queue once; return whether any had a job, whether one has more, and whether no slot was free."""
        claimed, has_more, found_slots, lacks_slots = False, False, False, False
        self._queues.append(self._queues.pop(0))  # queues take turns to be first
        for queue in self._queues:
            slots = self._slots.acquire(queue, WORKER_BATCH)
            lacks_slots = lacks_slots or not slots
            if slots:
                found_slots = True
                claims = self._claimer.reserve(queue, slots)
                claimed = claimed or bool(claims)
                has_more = has_more or len(claims) == slots
        self._slots.is_source_waiting = has_more or lacks_slots
        return claimed, has_more and self._has_free_slots(), not found_slots

    def _has_free_slots(self) -> bool:
        return any(self._slots.has_free(queue) for queue in self._queues)
