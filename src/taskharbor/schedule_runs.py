"""The runs of schedules for operators: the last ones with what became of their jobs, and the next fire times."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from taskharbor.schedules import next_fires
from taskharbor.views import iso_time, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.model import JobSummary, Schedule
    from taskharbor.core.schedule_runs import ScheduleRun
    from taskharbor.drivers.base import Inspector
    from taskharbor.views import View

MAX_FIRE_TIMES: Final = 1_000


def read_runs(inspector: Inspector, names: Sequence[str], *, limit: int) -> Mapping[str, list[View]]:
    """Return the newest *limit* runs of each schedule, newest first, by name. It takes two statements."""
    runs = inspector.schedule_runs(names, limit=limit)
    jobs = inspector.summaries([run.job_id for run in runs if run.job_id is not None])
    found: dict[str, list[View]] = {name: [] for name in names}
    for name, own in groupby(runs, lambda run: run.schedule):
        found[name] = [run_view(run, None if run.job_id is None else jobs.get(run.job_id)) for run in own]
    return found


def run_view(run: ScheduleRun, job: JobSummary | None) -> View:
    """Return the JSON form of a run. *job* is None if it has none, or if its job was removed."""
    started, ended = (None, None) if job is None else (job.processing_started_at, job.completed_at)
    return {
        "at": iso_time(run.at),
        "fire_time": iso_time(run.fire_time),
        "job_id": None if run.job_id is None else str(run.job_id),
        "skipped": None if run.skipped is None else run.skipped.value,
        "status": None if job is None else job.status.value,
        "attempts": None if job is None else job.attempt_count,
        "ended_at": iso_time(ended),
        "run_seconds": None if started is None or ended is None else seconds(ended - started),
        "error": None if job is None else job.last_error,
    }


def read_fire_times(schedule: Schedule, *, now: datetime, count: int) -> View:
    """Return the next *count* fire times of a schedule, also if it is paused."""
    fires = next_fires(schedule.cron, schedule.timezone, after=now, count=count)
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "fires": [iso_time(fire) for fire in fires],
        "local": [fire.astimezone(ZoneInfo(schedule.timezone)).isoformat() for fire in fires],
    }
