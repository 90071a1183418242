"""Finding jobs, page by page and group by group, without a look at all of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core import states
from taskharbor.core.results import Page, scan_limit
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
    from taskharbor.core.results import DeadLetterGroup, JobFilter

_ABOVE_ALL: Final = b"\xff" * 17  # an id has 16 bytes
_CHUNK: Final = 500  # of ids in one statement: SQLite bounds its parameters

# Only ids are told: whoever does not match may have a large payload.
_LOOK: Final = """
    SELECT id,
           (:queue IS NULL OR queue = :queue)
               AND (:type IS NULL OR type = :type)
               AND (:statuses IS NULL OR status IN (SELECT value FROM json_each(:statuses)))
               AND (:since IS NULL OR created_at >= :since)
               AND (:until IS NULL OR created_at < :until)
               AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(metadata) WHERE key = :tag AND value = :tagged))
      FROM {source}
       AND id < :after
     ORDER BY id DESC
     LIMIT :reach
"""
AT_ALL: Final = _LOOK.format(source="th_jobs WHERE TRUE")
# Few by design, so that they can be sorted.
_AT_RUNNING: Final = _LOOK.format(source="th_jobs INDEXED BY th_jobs_processing WHERE lease_expires_at IS NOT NULL")
_AT_WAITING: Final = _LOOK.format(source=f"th_jobs INDEXED BY th_jobs_waiting WHERE {WAITING}")
_DO_FEW_WAIT: Final = f"""
    SELECT count(*) < :reach
      FROM (SELECT 1 FROM th_jobs INDEXED BY th_jobs_waiting WHERE {WAITING} LIMIT :reach)
"""
AT_DEAD: Final = _LOOK.format(source="th_jobs INDEXED BY th_jobs_dead_id WHERE dead_at IS NOT NULL")
AT_KILLED: Final = _LOOK.format(
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
    asked: dict[str, Any] = {
        "after": _ABOVE_ALL if after is None else after.bytes,
        "queue": wanted.queue,
        "type": wanted.type,
        "statuses": None if wanted.statuses is None else json.dumps(sorted(wanted.statuses)),
        "since": maybe_micros(wanted.since),
        "until": maybe_micros(wanted.until),
        "tag": None if wanted.tag is None else wanted.tag[0],
        "tagged": None if wanted.tag is None else wanted.tag[1],
        "fingerprint": wanted.fingerprint,
        "reach": scan_limit(limit),
    }
    db.execute("BEGIN")  # both statements see the same
    try:
        looked_at = db.execute(_narrowest(db, wanted, asked), asked).fetchall()
        matching = [id for id, matches in looked_at if matches]
        found = [summary(row) for row in rows_of(db, SUMMARIES, matching[: limit + 1])]
    finally:
        db.execute("COMMIT")
    found.sort(key=lambda each: each.id, reverse=True)
    return Page.of(found, limit=limit, edge=job_id(looked_at[-1][0]) if len(looked_at) == scan_limit(limit) else None)


def _narrowest(db: sqlite3.Connection, wanted: JobFilter, asked: dict[str, Any]) -> str:
    """Return the statement that has the fewest jobs to look at."""
    if wanted.fingerprint is not None:
        return AT_KILLED
    statuses = wanted.statuses or frozenset(Status)
    if statuses == {Status.DEAD}:
        return AT_DEAD
    if statuses == {Status.PROCESSING}:
        return _AT_RUNNING
    # What waits lies in the order it runs, so that all of it must be sorted: a few jobs can be.
    if statuses <= states.WAITING and db.execute(_DO_FEW_WAIT, {"reach": asked["reach"]}).fetchone()[0]:
        return _AT_WAITING
    return AT_ALL


def rows_of(db: sqlite3.Connection, statement: str, ids: Sequence[bytes]) -> list[Any]:
    """Run *statement* for the jobs of these ids, so many at a time."""
    rows: list[Any] = []
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        rows += db.execute(statement % marks(chunk), chunk)
    return rows


_BY_KEY: Final = """
    SELECT job_id
      FROM th_keys
     WHERE key = ?
     ORDER BY queue
"""


def by_key(db: sqlite3.Connection, key: str) -> list[JobId]:
    return [job_id(holder) for (holder,) in db.execute(_BY_KEY, (key,))]


_END: Final = """
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
      JOIN th_jobs AS oldest ON oldest.id = ({_END.format(order="ASC")})
      JOIN th_jobs AS newest ON newest.id = ({_END.format(order="DESC")})
"""


def dead_groups(db: sqlite3.Connection, *, limit: int, queue: str | None) -> list[DeadLetterGroup]:
    rows = db.execute(GROUPS, {"limit": limit, "queue": queue})
    return [dead_letter_group(row) for row in sorted(rows, key=lambda row: (-row[3], row[:3]))]
