"""Search of jobs by page, and of dead letters by group, without a scan of all jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, LiteralString
from uuid import UUID

from taskharbor.core.results import Page, scan_limit
from taskharbor.core.states import FINAL, WAITING, Status
from taskharbor.drivers.postgres.rows import SUMMARY, summary
from taskharbor.drivers.records import dead_letter_group_from_values

if TYPE_CHECKING:
    from collections.abc import Collection

    from taskharbor.core.ids import JobId
    from taskharbor.core.results import DeadLetterGroup, JobFilter
    from taskharbor.drivers.postgres.pool import PostgresPool

_MAX_ID: Final = UUID(int=(1 << 128) - 1)
_LEAVES: Final = (WAITING, {Status.PROCESSING}, {Status.DEAD}, FINAL - {Status.DEAD})
_STATES: Final[LiteralString] = ", ".join(f"%(state_{n})s" for n in range(len(Status)))

# Returns the matching jobs, and the last job that was scanned, from which the next page continues.
_FIND: Final[LiteralString] = f"""
    SELECT {SUMMARY}, job.matches, job.place = %(scan_limit)s
      FROM (
           SELECT job.*,
                  row_number() OVER (ORDER BY job.id DESC) AS place,
                  (%(queue)s::text IS NULL OR job.queue = %(queue)s)
                      AND (%(type)s::text IS NULL OR job.type = %(type)s)
                      AND (%(statuses)s::text[] IS NULL OR job.status = ANY (%(statuses)s))
                      AND (%(since)s::timestamptz IS NULL OR job.created_at >= %(since)s)
                      AND (%(until)s::timestamptz IS NULL OR job.created_at < %(until)s)
                      AND (%(tag)s::text IS NULL OR job.metadata ->> %(tag)s = %(tagged)s) AS matches
             FROM {{source}}
              AND job.id < %(after)s
            ORDER BY job.id DESC
            LIMIT %(scan_limit)s
           ) AS job
     WHERE job.matches
        OR job.place = %(scan_limit)s
     ORDER BY job.id DESC
     LIMIT %(limit)s
"""
# With one parameter per status, the planner excludes partitions; with an array parameter it would not.
_BY_STATUS: Final[LiteralString] = _FIND.format(source=f"th_jobs AS job WHERE job.status = ANY (ARRAY[{_STATES}])")
_BY_FINGERPRINT: Final[LiteralString] = _FIND.format(
    source="th_jobs_dead AS job WHERE job.fingerprint = %(fingerprint)s"
)


def find(connections: PostgresPool, wanted: JobFilter, *, limit: int, after: JobId | None) -> Page:
    parameters: dict[str, Any] = {
        "after": after or _MAX_ID,
        "queue": wanted.queue,
        "type": wanted.type,
        "statuses": None if wanted.statuses is None else sorted(wanted.statuses),
        "since": wanted.since,
        "until": wanted.until,
        "tag": None if wanted.tag is None else wanted.tag[0],
        "tagged": None if wanted.tag is None else wanted.tag[1],
        "scan_limit": scan_limit(limit),
        "limit": limit + 1,
    }
    if wanted.fingerprint is None:
        rows = connections.fetch(_BY_STATUS, **parameters, **_status_parameters(wanted.statuses))
    else:
        rows = connections.fetch(_BY_FINGERPRINT, **parameters, fingerprint=wanted.fingerprint)
    found = [summary(row) for row in rows if row[-2]]
    return Page.of(found, limit=limit, edge=rows[-1][0] if rows and rows[-1][-1] else None)


def _status_parameters(statuses: Collection[Status] | None) -> dict[str, str | None]:
    """Return all statuses of the partitions that contain one of *statuses*; the filter selects among them."""
    states = [state.value for leaf in _LEAVES if statuses is None or leaf & set(statuses) for state in leaf]
    return {f"state_{n}": state for n, state in enumerate([*states, *[None] * (len(Status) - len(states))])}


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
