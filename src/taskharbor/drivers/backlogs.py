"""Queues whose head is full of jobs that a worker has no handler for: their scans start behind those jobs."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from taskharbor.core.ids import JobId

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from datetime import datetime

    from taskharbor.core.model import Claim

SLOW_SCAN_SECONDS: Final = 0.005
SLOW_CLAIM_SECONDS: Final = 0.000_1
"""A scan that took longer, in total and for each claim, may have passed a backlog: the queue's head is examined."""
HEAD_JOBS: Final = 1_000  # that are examined
MIN_UNHANDLED: Final = 500
"""How many of them must be unhandled to count as a backlog."""
MIN_RESCAN_SECONDS: Final = 1.0  # between two scans from the head of a queue
RESCAN_COST_FACTOR: Final = 50
"""The pause after a scan from the head, as a multiple of the extra time that it took.

A scan past 300,000 dead entries of PostgreSQL's index takes 40 ms; once a second, that would slow a drain considerably.
"""
MAX_RESCAN_SECONDS: Final = 10.0  # after which the head is scanned regardless of its cost
MARGIN: Final = timedelta(seconds=2)
"""How old a job may be when its insert is committed, to be found before the next scan of the whole queue."""

Position = tuple[int, "datetime", "JobId"]
"""Of a job in the order of its queue: priority, ``scheduled_for`` and id."""
FIRST_ID: Final = JobId(UUID(int=0))


def position_of(claim: Claim) -> Position:
    return claim.job.priority, claim.job.scheduled_for, claim.job.id


def last_position(claims: Sequence[Claim], limit: int) -> Position | None:
    """Return the position of the last claim if there are *limit* of them."""
    return position_of(claims[-1]) if claims and len(claims) >= limit else None


def rescan_pause(extra_seconds: float) -> float:
    """Return in how many seconds to scan a queue from its head again."""
    return min(max(MIN_RESCAN_SECONDS, RESCAN_COST_FACTOR * extra_seconds), MAX_RESCAN_SECONDS)


class QueueHead(NamedTuple):
    """The first due jobs of a queue: how many are left for other workers, the first one's priority, and the time."""

    unhandled: int
    priority: int | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Backlog:
    """Scan jobs of a smaller *priority*, and those after *last* or, without it, of that priority due after *since*."""

    priority: int
    since: datetime
    rescan_at: float
    last: Position | None = None

    def start(self, min_wait: timedelta) -> Position:
        """Return the position behind the backlog for jobs that have been due for *min_wait*."""
        return self.last or (self.priority, self.since - min_wait, FIRST_ID)


class UnhandledBacklogs:
    """The queues of a store that have such a backlog, for each set of handled types.

    A scan in the order of a queue passes all jobs of unhandled types: 50,000 of them take 20 to 140 ms, at every
    poll. While there are hundreds at the head of a queue, only the jobs before and behind them are scanned, and the
    whole queue once in 1 to 10 s. Jobs with an earlier due time, such as released ones, wait until then.
    """

    def __init__(self) -> None:
        self._backlogs: dict[Hashable, Backlog] = {}
        self._examine_at: dict[Hashable, float] = {}

    def find(self, key: Hashable) -> Backlog | None:
        """Return the backlog of *key*; None if there is none, or if the whole queue must be scanned."""
        backlog = self._backlogs.get(key)
        return None if backlog is None or time.monotonic() >= backlog.rescan_at else backlog

    def must_examine(self, key: Hashable, seconds: float, claims: int) -> bool:
        """Return whether a scan of the whole queue may have passed a backlog, by its time and number of claims.

        At most once a second: over a slow network every scan takes long.
        """
        now = time.monotonic()
        if seconds <= SLOW_SCAN_SECONDS + SLOW_CLAIM_SECONDS * claims or now < self._examine_at.get(key, now):
            return False
        self._examine_at[key] = now + MIN_RESCAN_SECONDS
        return True

    def note_scan(self, key: Hashable, head: QueueHead | None, *, seconds: float, last: Position | None) -> None:
        """Record a scan of the whole queue that took *seconds*. *last* is its last job if it found as many as asked.

        *head* is None if it was not examined.
        """
        if head is None or head.priority is None or head.unhandled < MIN_UNHANDLED:
            self._backlogs.pop(key, None)
            return
        since = head.now - timedelta(seconds=seconds) - MARGIN
        self._backlogs[key] = Backlog(head.priority, since, time.monotonic() + rescan_pause(seconds), last)

    def advance(self, key: Hashable, backlog: Backlog, last: Position | None) -> None:
        """Record a scan behind *backlog*. *last* is its last job if it found as many as asked."""
        if self._backlogs.get(key) is not None:
            self._backlogs[key] = replace(backlog, last=last)
