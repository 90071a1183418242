"""The time limit of a janitor's prune duty."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from taskharbor.drivers.base import STORE_BATCH
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.janitor import PRUNE_WITHIN, Janitor
from taskharbor.testing.clock import ManualClock

if TYPE_CHECKING:
    import pytest

    from taskharbor.runtime import Runtime

LEASE: Final = timedelta(seconds=30)
HOURS: Final = 10_000
"""The number of calls after which a janitor would have pruned for hours."""


class Clockwork:
    """A clock that advances only during a prune."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def test_a_janitor_with_endless_old_jobs_returns_to_its_other_duties(monkeypatch: pytest.MonkeyPatch) -> None:
    clockwork, driver = Clockwork(), MemoryDriver(clock=ManualClock())
    asked: list[dict[str, Any]] = []

    def prune(**how: Any) -> int:
        asked.append(how)
        clockwork.seconds += how["within"].total_seconds() / 2
        return STORE_BATCH if len(asked) < HOURS else 0

    monkeypatch.setattr(driver.maintenance, "prune", prune)

    Janitor(cast("Runtime", clockwork), driver, lease=LEASE).tick()

    assert len(asked) == 2
    assert {each["within"] for each in asked} == {PRUNE_WITHIN}
    assert clockwork.seconds < LEASE.total_seconds() / 3
