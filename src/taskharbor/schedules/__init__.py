"""Schedules: recurring jobs at the times of a cron expression."""

from __future__ import annotations

from taskharbor.schedules.cron import Cron, next_fires
from taskharbor.schedules.scheduler import Scheduler
from taskharbor.schedules.spec import ScheduleSpec, spec_of

__all__ = ["Cron", "ScheduleSpec", "Scheduler", "next_fires", "spec_of"]
