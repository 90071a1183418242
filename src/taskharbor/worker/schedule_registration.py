"""Stores the schedules that the worker's code declares. Its heartbeat names them while the worker lives."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable
from taskharbor.observability.failure_log import STORE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.observability.failure_log import FailureLog
    from taskharbor.schedules.scheduler import Scheduler
    from taskharbor.schedules.spec import ScheduleSpec

SCHEDULE_RETRY_DELAY: Final = timedelta(seconds=1)


def register_schedules(
    scheduler: Scheduler, schedules: Sequence[ScheduleSpec], failures: FailureLog
) -> timedelta | None:
    """Store *schedules*; return None when done, else the pause before the next try."""
    try:
        scheduler.declare(schedules)
    except StoreUnavailable as error:
        failures.unavailable(STORE, error)
        return SCHEDULE_RETRY_DELAY
    return None
