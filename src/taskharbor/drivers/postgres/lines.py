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


@dataclass(frozen=True, slots=True)
class _Mark:
    place: Place
    head_seen_at: float


class Lines:
    """Lets a batch begin where the last one ended, rather than at the head of the line.

    Jobs that were taken leave dead index entries at the head, which every scan from there
    has to pass until VACUUM removes them; and while somebody keeps an old snapshot open
    it removes none, so that a drain gets slower and slower. What comes in before the
    place is found a second later, or as soon as a batch comes back short: nothing but the
    order within that second depends on it.
    """

    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}

    def place(self, queue: str, limit: int) -> Place | None:
        """Return where to begin; None: at the head."""
        mark = self._marks.get(queue)
        if limit < MANY or mark is None or time.monotonic() - mark.head_seen_at > FRESH:
            return None
        return mark.place

    def note(self, queue: str, claims: Sequence[Claim], *, limit: int, after: Place | None) -> None:
        """Learn what a batch of *limit*, begun at *after*, brought."""
        known = self._marks.get(queue)
        if limit < MANY or len(claims) < limit:
            self._marks.pop(queue, None)
        else:
            head_seen_at = time.monotonic() if after is None or known is None else known.head_seen_at
            self._marks[queue] = _Mark(place(claims[-1]), head_seen_at)
