"""Where in each queue's line the last batch ended."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from taskharbor.drivers.postgres.claiming import place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.model import Claim
    from taskharbor.drivers.postgres.claiming import Place

MIN_CURSOR_BATCH: Final = 50
"""Batches from this size on are worth it, and their takers do not mind who of a second comes first."""
MIN_RESCAN_SECONDS: Final = 1.0  # seconds, after which the head of the line is looked at again
RESCAN_COST_FACTOR: Final = 50
"""So many times as long as a look at the head took beyond a batch from a place, none follows.

Past 300,000 dead entries that is 40 ms: once a second it would cost a drain more than all else that is dead.
"""
MAX_RESCAN_SECONDS: Final = 10.0  # seconds, after which it is looked at however long that takes


@dataclass(frozen=True, slots=True)
class _CursorState:
    place: Place
    look_at: float
    usual: float  # seconds of a batch from a place: what a look at the head takes beyond them, the dead entries cost


@dataclass(frozen=True, slots=True)
class ScanStart:
    """Where a batch begins (None: at the head), and when it was asked for."""

    place: Place | None
    asked_at: float


class ScanCursors:
    """Lets a batch begin where the last one ended, rather than at the head of the line.

    Jobs that were taken leave dead index entries at the head, which every scan from there
    has to pass until VACUUM removes them; and while somebody keeps an old snapshot open
    it removes none, so that a drain gets slower and slower. What comes in before the
    place is found a second later (where a look at the head takes long: up to ten), or as soon
    as a batch comes back short: nothing but the order within that time depends on it.
    """

    def __init__(self) -> None:
        self._marks: dict[str, _CursorState] = {}

    def start(self, queue: str, limit: int) -> ScanStart:
        """Return where to begin."""
        mark, now = self._marks.get(queue), time.monotonic()
        is_at_head = limit < MIN_CURSOR_BATCH or mark is None or now >= mark.look_at
        return ScanStart(None if is_at_head or mark is None else mark.place, now)

    def note(self, queue: str, claims: Sequence[Claim], *, limit: int, start: ScanStart) -> None:
        """Learn what a batch of *limit*, begun at *start*, brought."""
        known, now = self._marks.get(queue), time.monotonic()
        took = now - start.asked_at
        if limit < MIN_CURSOR_BATCH or len(claims) < limit:
            self._marks.pop(queue, None)
        elif start.place is None or known is None:
            usual = took if known is None else known.usual
            pause = min(max(MIN_RESCAN_SECONDS, RESCAN_COST_FACTOR * (took - usual)), MAX_RESCAN_SECONDS)
            self._marks[queue] = _CursorState(place(claims[-1]), now + pause, usual)
        else:
            self._marks[queue] = _CursorState(place(claims[-1]), known.look_at, took)
