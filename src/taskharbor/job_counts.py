"""Counting of jobs up to a limit, without a scan of the whole history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.ids import time_of
from taskharbor.views import iso_time

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.results import JobFilter
    from taskharbor.drivers.base import Inspector

MAX_COUNT: Final = 10_000
MAX_LOOKS: Final = 20
"""How many scans one count makes. A scan takes a millisecond or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCount:
    """How many jobs match, or at least how many, and how far back the count has looked."""

    count: int
    is_exact: bool
    looked_back_to: datetime | None

    def view(self) -> dict[str, Any]:
        """Return the JSON form."""
        looked_back_to = iso_time(self.looked_back_to)
        return {"count": self.count, "is_exact": self.is_exact, "looked_back_to": looked_back_to}


def count_jobs(inspector: Inspector, wanted: JobFilter, *, cap: int = MAX_COUNT) -> JobCount:
    """Count matching jobs, newest first, until there are *cap* of them or `MAX_LOOKS` scans are made."""
    count, after, looks = 0, None, 0
    while True:
        tally = inspector.count(wanted, after=after)
        count, after, looks = count + tally.count, tally.after, looks + 1
        if after is None or count >= cap or looks == MAX_LOOKS:
            is_exact = after is None and count <= cap
            return JobCount(
                count=min(count, cap), is_exact=is_exact, looked_back_to=None if after is None else time_of(after)
            )
