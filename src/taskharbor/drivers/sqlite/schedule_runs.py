"""The runs of schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from taskharbor.core.schedule_runs import KEPT_RUNS
from taskharbor.drivers.sqlite.rows import RUN, maybe_micros, schedule_run

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from taskharbor.core.schedule_runs import ScheduleRun
    from taskharbor.drivers.sqlite.pool import SqlitePool

_ADD: Final[LiteralString] = """
    INSERT INTO th_schedule_runs (schedule, fire_time, job_id, skipped, at)
    SELECT name, :fire_time, :job_id, :skipped, :now
      FROM th_schedules
     WHERE name = :schedule
"""
_PRUNE: Final[LiteralString] = """
    DELETE FROM th_schedule_runs
     WHERE schedule = :schedule
       AND number <= (
           SELECT number
             FROM th_schedule_runs
            WHERE schedule = :schedule
            ORDER BY number DESC
            LIMIT 1 OFFSET :kept
           )
"""


def add(db: sqlite3.Connection, runs: Sequence[ScheduleRun], *, now: int) -> None:
    """Add runs, and remove the oldest of their schedules."""
    for run in runs:
        params = {
            "schedule": run.schedule,
            "fire_time": maybe_micros(run.fire_time),
            "job_id": None if run.job_id is None else run.job_id.bytes,
            "skipped": run.skipped,
            "now": now,
        }
        db.execute(_ADD, params)
    for name in {run.schedule for run in runs}:
        db.execute(_PRUNE, {"schedule": name, "kept": KEPT_RUNS})


_READ: Final[LiteralString] = f"""
    SELECT {RUN}
      FROM th_schedule_runs
     WHERE schedule = :schedule
     ORDER BY number DESC
     LIMIT :limit
"""


def read(connections: SqlitePool, names: Sequence[str], *, limit: int) -> list[ScheduleRun]:
    with connections.read() as db:
        return [schedule_run(row) for name in names for row in db.execute(_READ, {"schedule": name, "limit": limit})]
