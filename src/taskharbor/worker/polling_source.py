"""Taking jobs from the store, as many as there is room for."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.runtime import NO_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.worker.claimer import Claimer
    from taskharbor.worker.config import WorkerConfig
    from taskharbor.worker.execution import ExecutionSlots
    from taskharbor.worker.stop_request import StopRequest

_LOG: Final = logging.getLogger("taskharbor.worker")
MIN_POLL_PAUSE: Final = timedelta(milliseconds=10)
FULL_PAUSE: Final = timedelta(seconds=60)  # whoever ends an attempt wakes us


class PollingSource:
    """Sets room aside, then reserves, so that no job waits in a worker that cannot run it.

    A queue that gave all it was asked for is asked again at once; one that has nothing is
    asked at intervals that double up to *poll*, unless somebody rings. A reply that was
    lost is read back by its token before anything else is taken.
    """

    def __init__(self, slots: ExecutionSlots, stop: StopRequest, claimer: Claimer, config: WorkerConfig) -> None:
        self._slots = slots
        self._stop = stop
        self._claimer = claimer
        self._queues = list(config.queues)
        self._poll = config.poll
        self._pause = MIN_POLL_PAUSE
        self._dry_after: int | None = None
        self.is_stopped_cleanly = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing was due when it looked last, and no attempt has ended since: that may leave jobs behind."""
        return self._dry_after == self._slots.departures

    @property
    def ticks(self) -> dict[str, Callable[[], timedelta]]:
        return {"source": self.tick}

    def tick(self) -> timedelta:
        if self._stop.is_set:
            return self._end()
        departures, self._dry_after = self._slots.departures, None
        try:
            self._claimer.read_back()
            took, has_more, is_full = self._reserve_all()
        except StoreUnavailable as error:
            _LOG.warning("cannot take jobs: %s", error)
            return self._next_pause(took=False)
        self._dry_after = None if took or is_full else departures
        if has_more or (
            self._slots.is_source_waiting and self._slots.departures != departures
        ):  # room was made meanwhile
            return NO_PAUSE
        return FULL_PAUSE if is_full else self._next_pause(took=took)

    def _end(self) -> timedelta:
        """Find out what was taken by calls without a reply: a worker that ended before would leave it to its lease."""
        try:
            self._claimer.read_back()
        except Exception as error:  # noqa: BLE001  whatever it was, a worker that stops must not wait for it for long
            _LOG.warning("cannot find out what was taken: %s", error)
            self._claimer.drop_expired()
        self.is_stopped_cleanly = self._claimer.has_no_pending
        return FULL_PAUSE if self.is_stopped_cleanly else self._next_pause(took=False)

    def _next_pause(self, *, took: bool) -> timedelta:
        self._pause = MIN_POLL_PAUSE if took else min(2 * self._pause, self._poll)
        return self._pause

    def _reserve_all(self) -> tuple[bool, bool, bool]:
        """Ask every queue once; return whether any gave a job, one has more, and there was no room at all."""
        took, has_more, room_found, lacks_room = False, False, False, False
        self._queues.append(self._queues.pop(0))  # each is first in turn
        for queue in self._queues:
            room = self._slots.acquire(queue, STORE_BATCH)
            lacks_room = lacks_room or not room
            if room:
                room_found = True
                claims = self._claimer.reserve(queue, room)
                took = took or bool(claims)
                has_more = has_more or len(claims) == room
        self._slots.is_source_waiting = has_more or lacks_room
        return took, has_more and self._has_free_slots(), not room_found

    def _has_free_slots(self) -> bool:
        return any(self._slots.has_free(queue) for queue in self._queues)
