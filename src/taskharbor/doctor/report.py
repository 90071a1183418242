"""The findings of all checks of an open store, kept for a while: a check may take seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from taskharbor.doctor.examination import examine_open
from taskharbor.doctor.findings import Level
from taskharbor.views import iso_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from taskharbor.drivers.base import Inspector
    from taskharbor.views import View

MIN_PERIOD_SECONDS: Final = 30.0
"""The minimum time between two runs of the checks."""


class HealthReport:
    """Runs the checks of `taskharbor doctor` at most once every 30 seconds. It must not be called concurrently."""

    def __init__(
        self,
        url: str | None,
        inspector: Callable[[], Inspector],
        *,
        keep: timedelta,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._inspector, self._keep = url, inspector, keep
        self._monotonic = monotonic
        self._last: tuple[float, View] | None = None

    def read(self) -> View:
        """Return the findings, which are up to 30 seconds old."""
        if self._last is None or self._monotonic() - self._last[0] >= MIN_PERIOD_SECONDS:
            findings = list(examine_open(self._url, self._inspector(), keep=self._keep))
            worst = max((each.level for each in findings), key=[*Level].index, default=Level.OK)
            view = {
                "checked_at": iso_time(self._inspector().now()),
                "level": worst.value,
                "findings": [each.view() for each in findings],
            }
            self._last = (self._monotonic(), view)
        return self._last[1]
