"""Where the scans of a queue start: at its head, where the last large batch ended, or behind unhandled jobs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.drivers.backlogs import UnhandledBacklogs, last_position, position_of, rescan_pause
from taskharbor.drivers.postgres.claim import claim_due, read_head

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from taskharbor.core.claims import Claimant
    from taskharbor.core.model import Claim
    from taskharbor.drivers.backlogs import Backlog, Position, QueueHead
    from taskharbor.drivers.postgres.pool import PostgresPool

NO_WAIT: Final = timedelta(0)
MIN_CURSOR_BATCH: Final = 50
"""Smaller batches always scan from the head: they gain little, and keep the exact order."""


@dataclass(frozen=True, slots=True)
class _CursorState:
    position: Position
    rescan_at: float
    usual_seconds: float  # of a batch from a cursor; a scan from the head takes longer by the cost of dead entries


@dataclass(frozen=True, slots=True)
class ScanStart:
    """The position after which a batch starts (None: the head of the queue), and when it was requested."""

    position: Position | None
    requested_at: float


class ScanCursors:
    """The keyset position of each queue at which its last batch ended, so that the next batch starts there.

    Claimed jobs leave dead index entries at the head of a queue. Every scan from the head must
    pass them until VACUUM removes them, and VACUUM removes none while an old snapshot is open,
    so a drain would slow down continuously. Jobs that arrive before the position are found
    after one second (up to ten if a scan from the head is slow), or by the next batch after one
    that is not full. Only the order of jobs within that time is affected.
    """

    def __init__(self) -> None:
        self._cursors: dict[str, _CursorState] = {}

    def start(self, queue: str, limit: int) -> ScanStart:
        """Return the position after which the next batch of *limit* jobs starts."""
        cursor, now = self._cursors.get(queue), time.monotonic()
        is_at_head = limit < MIN_CURSOR_BATCH or cursor is None or now >= cursor.rescan_at
        return ScanStart(None if is_at_head or cursor is None else cursor.position, now)

    def note(self, queue: str, claims: Sequence[Claim], *, limit: int, start: ScanStart) -> None:
        """Record the *claims* of a batch of *limit* jobs that started at *start*."""
        known, now = self._cursors.get(queue), time.monotonic()
        seconds = now - start.requested_at
        if limit < MIN_CURSOR_BATCH or len(claims) < limit:
            self._cursors.pop(queue, None)
        elif start.position is None or known is None:
            usual = seconds if known is None else known.usual_seconds
            self._cursors[queue] = _CursorState(position_of(claims[-1]), now + rescan_pause(seconds - usual), usual)
        else:
            self._cursors[queue] = _CursorState(position_of(claims[-1]), known.rescan_at, seconds)


class PostgresQueueScans:
    """Claims waiting jobs of queues, and remembers from where to scan each queue the next time."""

    def __init__(self, connections: PostgresPool, *, asynchronous: bool) -> None:
        self._connections = connections
        self._asynchronous = asynchronous
        self._cursors = ScanCursors()
        self._backlogs = UnhandledBacklogs()

    def claim(
        self, queue: str, claimant: Claimant, *, limit: int, overdue_after: timedelta, overdue_only: bool
    ) -> list[Claim]:
        scan = PostgresQueueScan(
            self._connections,
            queue,
            claimant,
            overdue_after,
            overdue_after if overdue_only else NO_WAIT,
            self._asynchronous,
        )
        if claimant.types is None:
            return scan.claim(limit) if overdue_only else self._claim_in_batches(scan, limit)
        key = (queue, frozenset(claimant.types), overdue_only)
        if (backlog := self._backlogs.find(key)) is not None:
            return self._claim_around(backlog, key, scan, limit)
        began_at = time.monotonic()
        claims = scan.claim(limit) if overdue_only else self._claim_in_batches(scan, limit)
        seconds = time.monotonic() - began_at
        head = scan.head() if self._backlogs.must_examine(key, seconds, len(claims)) else None
        self._backlogs.note_scan(key, head, seconds=seconds, last=last_position(claims, limit))
        return claims

    def _claim_around(self, backlog: Backlog, key: Hashable, scan: PostgresQueueScan, limit: int) -> list[Claim]:
        """Claim jobs before and behind the backlog."""
        claims = scan.claim(limit, before=backlog.priority)
        if (left := limit - len(claims)) > 0:
            behind = scan.claim(left, after=backlog.start(scan.min_wait))
            self._backlogs.advance(key, backlog, last_position(behind, left))
            claims += behind
        return claims

    def _claim_in_batches(self, scan: PostgresQueueScan, limit: int) -> list[Claim]:
        start = self._cursors.start(scan.queue, limit)
        claims = scan.claim(limit, after=start.position)
        self._cursors.note(scan.queue, claims, limit=limit, start=start)
        # If there are some, they start before the scan from the head, which the next batch makes: past the dead
        # entries of a drain under an old snapshot, it takes 10 ms.
        return claims if claims or start.position is None else scan.claim(limit)


@dataclass(frozen=True, slots=True)
class PostgresQueueScan:
    """A scan of one queue for one claimant."""

    connections: PostgresPool
    queue: str
    claimant: Claimant
    overdue_after: timedelta
    min_wait: timedelta
    asynchronous: bool

    def claim(self, limit: int, *, after: Position | None = None, before: int | None = None) -> list[Claim]:
        return claim_due(
            self.connections,
            self.queue,
            self.claimant,
            limit=limit,
            overdue_after=self.overdue_after,
            min_wait=self.min_wait,
            asynchronous=self.asynchronous,
            after=after,
            before=before,
        )

    def head(self) -> QueueHead:
        return read_head(self.connections, self.queue, self.claimant, min_wait=self.min_wait)
