"""The time ranges of charts: 1 h, 6 h, 24 h and 8 days, as links."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from taskharbor.core.statistics import COARSE_STEP, HOUR, MINUTE, begin_of
from taskharbor.dashboard.charts import steps_of


@dataclass(frozen=True, slots=True)
class Range:
    """A range of time up to now, in steps."""

    name: str
    title: str
    span: timedelta
    step: timedelta

    @property
    def each(self) -> str:
        """What a step is called in a sentence."""
        return {MINUTE: "each minute", HOUR: "each hour"}.get(self.step, "every 15 minutes")

    def bounds(self, now: datetime) -> tuple[datetime, datetime]:
        """Return the beginning of the first step and the end of the present one."""
        until = begin_of(now, self.step) + self.step
        return until - self.span, until

    def steps(self, now: datetime) -> list[datetime]:
        """Return the beginning of each step."""
        return steps_of(*self.bounds(now), self.step)


RANGES: Final = (
    Range("1h", "last hour", HOUR, MINUTE),
    Range("6h", "last 6 hours", 6 * HOUR, COARSE_STEP),
    Range("24h", "last 24 hours", 24 * HOUR, COARSE_STEP),
    Range("8d", "last 8 days", timedelta(days=8), HOUR),
)


def range_named(name: str) -> Range:
    """Return the range of this name, or the first one."""
    return next((each for each in RANGES if each.name == name), RANGES[0])
