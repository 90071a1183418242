"""Search of jobs by page, and of dead letters by group, without a scan of all jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, LiteralString

from taskharbor.core.results import Page, Tally, scan_limit
from taskharbor.core.states import FINAL, WAITING, Status
from taskharbor.drivers.postgres.rows import NOW, SUMMARY, summary
from taskharbor.drivers.records import dead_letter_group_from_values

if TYPE_CHECKING:
    from collections.abc import Collection

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary
    from taskharbor.core.results import DeadLetterGroup, JobFilter
    from taskharbor.drivers.postgres.pool import PostgresPool

_LEAVES: Final = (WAITING, {Status.PROCESSING}, {Status.DEAD}, FINAL - {Status.DEAD})
_STATES: Final[LiteralString] = ", ".join(f"%(state_{n})s" for n in range(len(Status)))

_MATCHES: Final[LiteralString] = """
                  (%(queue)s::text IS NULL OR job.queue = %(queue)s)
                      AND (%(type)s::text IS NULL OR job.type = %(type)s)
                      AND (%(statuses)s::text[] IS NULL OR job.status = ANY (%(statuses)s))
                      AND (%(since)s::timestamptz IS NULL OR job.created_at >= %(since)s)
                      AND (%(until)s::timestamptz IS NULL OR job.created_at < %(until)s)
                      AND (%(worker)s::text IS NULL OR job.worker_id = %(worker)s)
                      AND (%(schedule)s::text IS NULL OR job.metadata ->> 'schedule' = %(schedule)s)
                      AND (%(tag)s::text IS NULL OR job.metadata ->> %(tag)s = %(tagged)s) AS matches"""
_SCANNED: Final[LiteralString] = """
             FROM {source}
              AND job.id < %(below)s
              AND job.id >= %(lowest)s
            ORDER BY job.id DESC
            LIMIT %(scan_limit)s"""
# Returns the matching jobs, and the last job that was scanned, from which the next page continues.
_FIND: Final[LiteralString] = f"""
    SELECT {SUMMARY}, job.matches, job.place = %(scan_limit)s
      FROM (
           SELECT job.*,
                  row_number() OVER (ORDER BY job.id DESC) AS place,{_MATCHES}{_SCANNED}
           ) AS job
     WHERE job.matches
        OR job.place = %(scan_limit)s
     ORDER BY job.id DESC
     LIMIT %(limit)s
"""
_COUNT: Final[LiteralString] = f"""
    SELECT count(*) FILTER (WHERE job.matches), count(*), (array_agg(job.id))[count(*)::integer]
      FROM (
           SELECT job.id,{_MATCHES}{_SCANNED}
           ) AS job
"""
# With one parameter per status, the planner excludes partitions; with an array parameter it would not.
_OF_STATUS: Final[LiteralString] = f"th_jobs AS job WHERE job.status = ANY (ARRAY[{_STATES}])"
_OF_FINGERPRINT: Final[LiteralString] = "th_jobs_dead AS job WHERE job.fingerprint = %(fingerprint)s"
_FIND_BY_STATUS: Final[LiteralString] = _FIND.format(source=_OF_STATUS)
_FIND_BY_FINGERPRINT: Final[LiteralString] = _FIND.format(source=_OF_FINGERPRINT)
_COUNT_BY_STATUS: Final[LiteralString] = _COUNT.format(source=_OF_STATUS)
_COUNT_BY_FINGERPRINT: Final[LiteralString] = _COUNT.format(source=_OF_FINGERPRINT)


def find(connections: PostgresPool, wanted: JobFilter, *, limit: int, after: JobId | None) -> Page:
    statement = _FIND_BY_STATUS if wanted.fingerprint is None else _FIND_BY_FINGERPRINT
    parameters = _parameters(wanted, limit=limit, after=after)
    rows = connections.fetch(statement, **parameters, limit=limit + 1)
    found = [summary(row) for row in rows if row[-2]]
    return Page.of(found, limit=limit, edge=rows[-1][0] if rows and rows[-1][-1] else None)


def count(connections: PostgresPool, wanted: JobFilter, *, after: JobId | None) -> Tally:
    statement = _COUNT_BY_STATUS if wanted.fingerprint is None else _COUNT_BY_FINGERPRINT
    [(matching, scanned, last)] = connections.fetch(statement, **_parameters(wanted, limit=1, after=after))
    return Tally(matching, last if scanned == scan_limit(1) else None)


def _parameters(wanted: JobFilter, *, limit: int, after: JobId | None) -> dict[str, Any]:
    lowest, below = wanted.id_bounds(after)
    return {
        "lowest": lowest,
        "below": below,
        "queue": wanted.queue,
        "type": wanted.type,
        "statuses": None if wanted.statuses is None else sorted(wanted.statuses),
        "since": wanted.since,
        "until": wanted.until,
        "worker": wanted.worker,
        "schedule": wanted.schedule,
        "tag": None if wanted.tag is None else wanted.tag[0],
        "tagged": None if wanted.tag is None else wanted.tag[1],
        "scan_limit": scan_limit(limit),
        **(_status_parameters(wanted.statuses) if wanted.fingerprint is None else {"fingerprint": wanted.fingerprint}),
    }


def _status_parameters(statuses: Collection[Status] | None) -> dict[str, str | None]:
    """Return all statuses of the partitions that contain one of *statuses*; the filter selects among them."""
    states = [state.value for leaf in _LEAVES if statuses is None or leaf & set(statuses) for state in leaf]
    return {f"state_{n}": state for n, state in enumerate([*states, *[None] * (len(Status) - len(states))])}


_NEXT_UP: Final[LiteralString] = f"""
    -- A lane holds the waiting jobs of one priority. In each, the first due and the first later jobs are read.
    WITH RECURSIVE lane AS (
        (
        SELECT priority
          FROM th_jobs_waiting
         WHERE queue = %(queue)s
           AND attempt_count < max_attempts
         ORDER BY priority, scheduled_for
         LIMIT 1
        )
         UNION ALL
        SELECT head.priority
          FROM lane
         CROSS JOIN LATERAL (
               SELECT priority
                 FROM th_jobs_waiting
                WHERE queue = %(queue)s
                  AND priority > lane.priority
                  AND attempt_count < max_attempts
                ORDER BY priority, scheduled_for
                LIMIT 1
               ) AS head
    )
    SELECT {SUMMARY}
      FROM lane
     CROSS JOIN LATERAL (
           (
           SELECT due.*
             FROM th_jobs_waiting AS due
            WHERE due.queue = %(queue)s
              AND due.priority = lane.priority
              AND due.scheduled_for <= {NOW}
              AND due.attempt_count < due.max_attempts
            ORDER BY due.scheduled_for, due.id
            LIMIT %(limit)s
           )
            UNION ALL
           (
           SELECT later.*
             FROM th_jobs_waiting AS later
            WHERE later.queue = %(queue)s
              AND later.priority = lane.priority
              AND later.scheduled_for > {NOW}
              AND later.attempt_count < later.max_attempts
            ORDER BY later.scheduled_for, later.id
            LIMIT %(limit)s
           )
           ) AS job
     ORDER BY job.scheduled_for > {NOW},
              CASE WHEN job.scheduled_for <= {NOW} THEN job.priority END,
              job.scheduled_for,
              job.priority,
              job.id
     LIMIT %(limit)s
"""


def next_up(connections: PostgresPool, queue: str, *, limit: int) -> list[JobSummary]:
    return [summary(row) for row in connections.fetch(_NEXT_UP, queue=queue, limit=limit)]


_BY_KEY: Final[LiteralString] = """
    SELECT job_id
      FROM th_keys
     WHERE key = %(key)s
     ORDER BY queue
"""


def by_key(connections: PostgresPool, key: str) -> list[JobId]:
    return [holder for (holder,) in connections.fetch(_BY_KEY, key=key)]


_GROUP_EDGE: Final[LiteralString] = """
    SELECT job.id, job.last_error, job.dead_at
      FROM th_jobs_dead AS job
     WHERE job.queue = dead.queue
       AND job.type = dead.type
       AND job.fingerprint = dead.fingerprint
     ORDER BY job.dead_at {order}, job.id {order}
     LIMIT 1
"""
_GROUPS: Final[LiteralString] = f"""
    SELECT dead.queue, dead.type, dead.fingerprint, dead.count,
           newest.last_error, oldest.dead_at, newest.dead_at, newest.id
      FROM (
           SELECT *
             FROM th_dead_groups
            WHERE count > 0
              AND (%(queue)s::text IS NULL OR queue = %(queue)s)
            ORDER BY count DESC, queue, type, fingerprint
            LIMIT %(limit)s
           ) AS dead
     CROSS JOIN LATERAL ({_GROUP_EDGE.format(order="ASC")}) AS oldest
     CROSS JOIN LATERAL ({_GROUP_EDGE.format(order="DESC")}) AS newest
"""


def dead_groups(connections: PostgresPool, *, limit: int, queue: str | None) -> list[DeadLetterGroup]:
    rows = connections.fetch(_GROUPS, limit=limit, queue=queue)
    return [dead_letter_group_from_values(row) for row in sorted(rows, key=lambda row: (-row[3], row[:3]))]
