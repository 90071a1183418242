"""Search: pages of jobs, jobs by idempotency key, and groups of dead letters, without full scans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core import states
from taskharbor.core.results import Page, Tally, scan_limit
from taskharbor.core.states import Status
from taskharbor.drivers.sqlite.rows import (
    JOB,
    SUMMARY,
    WAITING,
    dead_letter_group,
    job_id,
    marks,
    maybe_micros,
    summary,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary
    from taskharbor.core.results import DeadLetterGroup, JobFilter

_ID_BATCH: Final = 500  # ids per statement: SQLite limits the number of parameters

# Selects ids only: jobs that do not match may have large payloads.
_SCAN: Final = """
    SELECT id,
           (:queue IS NULL OR queue = :queue)
               AND (:type IS NULL OR type = :type)
               AND (:statuses IS NULL OR status IN (SELECT value FROM json_each(:statuses)))
               AND (:since IS NULL OR created_at >= :since)
               AND (:until IS NULL OR created_at < :until)
               AND (:worker IS NULL OR worker_id = :worker)
               AND (:schedule IS NULL OR metadata ->> '$.schedule' = :schedule)
               AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(metadata) WHERE key = :tag AND value = :tagged))
      FROM {source}
       AND id < :below
       AND id >= :lowest
     ORDER BY id DESC
     LIMIT :reach
"""
SCAN_ALL: Final = _SCAN.format(source="th_jobs WHERE TRUE")
# There are few running jobs, so sorting them is cheap.
_SCAN_PROCESSING: Final = _SCAN.format(
    source="th_jobs INDEXED BY th_jobs_processing WHERE lease_expires_at IS NOT NULL"
)
_SCAN_WAITING: Final = _SCAN.format(source=f"th_jobs INDEXED BY th_jobs_waiting WHERE {WAITING}")
_IS_WAITING_SMALL: Final = f"""
    SELECT count(*) < :reach
      FROM (SELECT 1 FROM th_jobs INDEXED BY th_jobs_waiting WHERE {WAITING} LIMIT :reach)
"""
SCAN_DEAD: Final = _SCAN.format(source="th_jobs INDEXED BY th_jobs_dead_id WHERE dead_at IS NOT NULL")
SCAN_FINGERPRINT: Final = _SCAN.format(
    source="th_jobs INDEXED BY th_jobs_dead_fingerprint WHERE dead_at IS NOT NULL AND fingerprint = :fingerprint"
)
GET: Final = f"""
    SELECT {JOB}
      FROM th_jobs
     WHERE id IN (%s)
"""
SUMMARIES: Final = f"""
    SELECT {SUMMARY}
      FROM th_jobs
     WHERE id IN (%s)
"""


def find(db: sqlite3.Connection, wanted: JobFilter, *, limit: int, after: JobId | None) -> Page:
    params = _params(wanted, limit=limit, after=after)
    db.execute("BEGIN")  # one snapshot for both statements
    try:
        scanned = db.execute(_narrowest(db, wanted, params), params).fetchall()
        matching = [id for id, matches in scanned if matches]
        found = [summary(row) for row in rows_of(db, SUMMARIES, matching[: limit + 1])]
    finally:
        db.execute("COMMIT")
    found.sort(key=lambda each: each.id, reverse=True)
    return Page.of(found, limit=limit, edge=_edge(scanned, limit))


def count(db: sqlite3.Connection, wanted: JobFilter, *, after: JobId | None) -> Tally:
    params = _params(wanted, limit=1, after=after)
    scanned = db.execute(_narrowest(db, wanted, params), params).fetchall()
    return Tally(sum(matches for _, matches in scanned if matches), _edge(scanned, 1))


def _edge(scanned: Sequence[Any], limit: int) -> JobId | None:
    """Return the last job that was scanned, or None if there are no more jobs."""
    return job_id(scanned[-1][0]) if len(scanned) == scan_limit(limit) else None


def _params(wanted: JobFilter, *, limit: int, after: JobId | None) -> dict[str, Any]:
    lowest, below = wanted.id_bounds(after)
    return {
        "lowest": lowest.bytes,
        "below": below.bytes,
        "queue": wanted.queue,
        "type": wanted.type,
        "statuses": None if wanted.statuses is None else json.dumps(sorted(wanted.statuses)),
        "since": maybe_micros(wanted.since),
        "until": maybe_micros(wanted.until),
        "worker": wanted.worker,
        "schedule": wanted.schedule,
        "tag": None if wanted.tag is None else wanted.tag[0],
        "tagged": None if wanted.tag is None else wanted.tag[1],
        "fingerprint": wanted.fingerprint,
        "reach": scan_limit(limit),
    }


def _narrowest(db: sqlite3.Connection, wanted: JobFilter, params: dict[str, Any]) -> str:
    """Return the statement that scans the fewest jobs."""
    if wanted.fingerprint is not None:
        return SCAN_FINGERPRINT
    statuses = wanted.statuses or frozenset(Status)
    if statuses == {Status.DEAD}:
        return SCAN_DEAD
    if statuses == {Status.PROCESSING}:
        return _SCAN_PROCESSING
    # The index of waiting jobs is not in id order, so a scan must sort all of them. Use it only for a few.
    if statuses <= states.WAITING and db.execute(_IS_WAITING_SMALL, {"reach": params["reach"]}).fetchone()[0]:
        return _SCAN_WAITING
    return SCAN_ALL


def rows_of(db: sqlite3.Connection, statement: str, ids: Sequence[bytes]) -> list[Any]:
    """Run *statement* for the jobs with these ids, in batches."""
    rows: list[Any] = []
    for start in range(0, len(ids), _ID_BATCH):
        batch = ids[start : start + _ID_BATCH]
        rows += db.execute(statement % marks(batch), batch)
    return rows


# A lane holds the waiting jobs of one priority.
LANES: Final = f"""
    WITH RECURSIVE
    lane (priority) AS (
        SELECT (
               SELECT priority
                 FROM th_jobs INDEXED BY th_jobs_waiting
                WHERE {WAITING}
                  AND queue = :queue
                ORDER BY priority
                LIMIT 1
               )
         UNION ALL
        SELECT (
               SELECT priority
                 FROM th_jobs INDEXED BY th_jobs_waiting
                WHERE {WAITING}
                  AND queue = :queue
                  AND priority > lane.priority
                ORDER BY priority
                LIMIT 1
               )
          FROM lane
         WHERE lane.priority IS NOT NULL
    )
    SELECT priority
      FROM lane
     WHERE priority IS NOT NULL
"""
IN_LANE: Final = f"""
    SELECT {SUMMARY}
      FROM th_jobs INDEXED BY th_jobs_waiting
     WHERE {WAITING}
       AND queue = :queue
       AND priority = :priority
       AND scheduled_for {{when}} :now
       AND attempt_count < max_attempts
     ORDER BY scheduled_for, id
     LIMIT :limit
"""
DUE_IN_LANE: Final = IN_LANE.format(when="<=")
LATER_IN_LANE: Final = IN_LANE.format(when=">")


def next_up(db: sqlite3.Connection, queue: str, *, limit: int, now: int) -> list[JobSummary]:
    params: dict[str, Any] = {"queue": queue, "now": now, "limit": limit}
    db.execute("BEGIN")  # one snapshot for all statements
    try:
        lanes = [priority for (priority,) in db.execute(LANES, params)]
        due: list[JobSummary] = []
        for priority in lanes:
            if len(due) < limit:
                due += map(summary, db.execute(DUE_IN_LANE, params | {"priority": priority}))
        later = [
            summary(row)
            for priority in (lanes if len(due) < limit else ())
            for row in db.execute(LATER_IN_LANE, params | {"priority": priority})
        ]
    finally:
        db.execute("COMMIT")
    later.sort(key=lambda job: (job.scheduled_for, job.priority, job.id))
    return [*due, *later][:limit]


_BY_KEY: Final = """
    SELECT job_id
      FROM th_keys
     WHERE key = ?
     ORDER BY queue
"""


def by_key(db: sqlite3.Connection, key: str) -> list[JobId]:
    return [job_id(holder) for (holder,) in db.execute(_BY_KEY, (key,))]


_GROUP_EDGE: Final = """
    SELECT id
      FROM th_jobs INDEXED BY th_jobs_dead_group
     WHERE dead_at IS NOT NULL
       AND queue = dead.queue
       AND type = dead.type
       AND fingerprint = dead.fingerprint
     ORDER BY dead_at {order}, id {order}
     LIMIT 1
"""
GROUPS: Final = f"""
    SELECT dead.queue, dead.type, dead.fingerprint, dead.count,
           newest.last_error, oldest.dead_at, newest.dead_at, newest.id
      FROM (
           SELECT *
             FROM th_dead_groups
            WHERE count > 0
              AND (:queue IS NULL OR queue = :queue)
            ORDER BY count DESC, queue, type, fingerprint
            LIMIT :limit
           ) AS dead
      JOIN th_jobs AS oldest ON oldest.id = ({_GROUP_EDGE.format(order="ASC")})
      JOIN th_jobs AS newest ON newest.id = ({_GROUP_EDGE.format(order="DESC")})
"""


def dead_groups(db: sqlite3.Connection, *, limit: int, queue: str | None) -> list[DeadLetterGroup]:
    rows = db.execute(GROUPS, {"limit": limit, "queue": queue})
    return [dead_letter_group(row) for row in sorted(rows, key=lambda row: (-row[3], row[:3]))]
