"""Stores the schedules that are declared with the handlers."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.schedules.scheduler import Scheduler
    from taskharbor.schedules.spec import ScheduleSpec

_LOG: Final = logging.getLogger("taskharbor.worker")
SCHEDULE_RETRY_DELAY: Final = timedelta(seconds=1)


def register_schedules(scheduler: Scheduler, schedules: Sequence[ScheduleSpec]) -> timedelta | None:
    """Store *schedules*; return None when done, else the pause before the next try."""
    try:
        scheduler.put(schedules)
    except StoreUnavailable as error:
        _LOG.warning("schedules not stored; retrying: %s", error)
        return SCHEDULE_RETRY_DELAY
    return None
