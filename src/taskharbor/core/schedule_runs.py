"""The runs of schedules: each fire time with its job, or why it has none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.ids import JobId

KEPT_RUNS: Final = 100
"""How many runs of each schedule a store keeps."""


class SkipReason(StrEnum):
    """Why a fire time has no job."""

    MISSED = "missed"
    """No process fired it in time, and the schedule skips missed fire times."""
    OVERLAP = "overlap"
    """The job of the previous fire time had not ended, and the schedule skips overlapping ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRun:
    """A run of a schedule. ``fire_time`` is None if a person asked for it; ``at`` is set by the store."""

    schedule: str
    fire_time: datetime | None
    job_id: JobId | None = None
    skipped: SkipReason | None = None
    at: datetime | None = None
