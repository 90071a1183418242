"""The runs of schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from taskharbor.core.schedule_runs import KEPT_RUNS
from taskharbor.drivers.postgres.rows import NOW, RUN, schedule_run
from taskharbor.drivers.postgres.schema import OPERATORS_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from taskharbor.core.schedule_runs import ScheduleRun
    from taskharbor.drivers.postgres.pool import PostgresPool

_ADD: Final[LiteralString] = f"""
    WITH added AS (
        INSERT INTO th_schedule_runs (schedule, fire_time, job_id, skipped, at)
        SELECT run.schedule, run.fire_time, run.job_id, run.skipped, {NOW}
          FROM unnest(%(schedules)s::text[], %(fire_times)s::timestamptz[], %(job_ids)s::uuid[], %(skipped)s::text[])
               WITH ORDINALITY AS run (schedule, fire_time, job_id, skipped, position)
          JOIN th_schedules ON th_schedules.name = run.schedule
         ORDER BY run.position
    )
    -- This sees the runs from before the statement.
    DELETE FROM th_schedule_runs AS run
     USING unnest(%(names)s::text[], %(kept)s::integer[]) AS asked (name, kept)
     WHERE run.schedule = asked.name
       AND run.number <= (
           SELECT old.number
             FROM th_schedule_runs AS old
            WHERE old.schedule = asked.name
            ORDER BY old.number DESC
           OFFSET asked.kept
            LIMIT 1
           )
"""


def add_statement(runs: Sequence[ScheduleRun]) -> tuple[LiteralString, dict[str, Any]]:
    """Return the statement that adds runs and removes the oldest of their schedules, and its parameters."""
    added = {run.schedule: 0 for run in runs}
    for run in runs:
        added[run.schedule] += 1
    return _ADD, {
        "schedules": [run.schedule for run in runs],
        "fire_times": [run.fire_time for run in runs],
        "job_ids": [run.job_id for run in runs],
        "skipped": [run.skipped for run in runs],
        "names": list(added),
        "kept": [max(0, KEPT_RUNS - count) for count in added.values()],
    }


def add(connections: PostgresPool, runs: Sequence[ScheduleRun]) -> None:
    if runs and has_runs(connections):
        statement, parameters = add_statement(runs[-KEPT_RUNS:])
        connections.fetch(statement, **parameters)


_READ: Final[LiteralString] = f"""
    SELECT {RUN}
      FROM unnest(%(names)s::text[]) WITH ORDINALITY AS asked (name, position)
     CROSS JOIN LATERAL (
           SELECT *
             FROM th_schedule_runs
            WHERE schedule = asked.name
            ORDER BY number DESC
            LIMIT %(limit)s
           ) AS run
     ORDER BY asked.position, run.number DESC
"""


def read(connections: PostgresPool, names: Sequence[str], *, limit: int) -> list[ScheduleRun]:
    if not has_runs(connections):
        return []
    return [schedule_run(row) for row in connections.fetch(_READ, names=list(names), limit=limit)]


def has_runs(connections: PostgresPool) -> bool:
    return connections.schema_version >= OPERATORS_VERSION
