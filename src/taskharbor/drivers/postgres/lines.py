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

MANY: Final = 50
"""Batches from this size on are worth it, and their takers do not mind who of a second comes first."""
FRESH: Final = 1.0  # seconds, after which the head of the line is looked at again
SHARE: Final = 50
"""So many times as long as a look at the head took beyond a batch from a place, none follows.

Past 300,000 dead entries that is 40 ms: once a second it would cost a drain more than all else that is dead.
"""
STALE: Final = 10.0  # seconds, after which it is looked at however long that takes


@dataclass(frozen=True, slots=True)
class _Mark:
    place: Place
    look_at: float
    usual: float  # seconds of a batch from a place: what a look at the head takes beyond them, the dead entries cost


@dataclass(frozen=True, slots=True)
class Start:
    """Where a batch begins (None: at the head), and when it was asked for."""

    place: Place | None
    asked_at: float


class Lines:
    """Lets a batch begin where the last one ended, rather than at the head of the line.

    Jobs that were taken leave dead index entries at the head, which every scan from there
    has to pass until VACUUM removes them; and while somebody keeps an old snapshot open
    it removes none, so that a drain gets slower and slower. What comes in before the
    place is found a second later (where a look at the head takes long: up to ten), or as soon
    as a batch comes back short: nothing but the order within that time depends on it.
    """

    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}

    def start(self, queue: str, limit: int) -> Start:
        """Return where to begin."""
        mark, now = self._marks.get(queue), time.monotonic()
        is_at_head = limit < MANY or mark is None or now >= mark.look_at
        return Start(None if is_at_head or mark is None else mark.place, now)

    def note(self, queue: str, claims: Sequence[Claim], *, limit: int, start: Start) -> None:
        """Learn what a batch of *limit*, begun at *start*, brought."""
        known, now = self._marks.get(queue), time.monotonic()
        took = now - start.asked_at
        if limit < MANY or len(claims) < limit:
            self._marks.pop(queue, None)
        elif start.place is None or known is None:
            usual = took if known is None else known.usual
            pause = min(max(FRESH, SHARE * (took - usual)), STALE)
            self._marks[queue] = _Mark(place(claims[-1]), now + pause, usual)
        else:
            self._marks[queue] = _Mark(place(claims[-1]), known.look_at, took)
