"""The log lines of attempts."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, LiteralString

from taskharbor.core.log_lines import encode_lines
from taskharbor.drivers.sqlite.rows import LOG, attempt_lines, marks

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.log_lines import AttemptLines
    from taskharbor.drivers.sqlite.pool import SqlitePool


class SqliteAttemptLogs:
    def __init__(self, connections: SqlitePool) -> None:
        self._connections = connections

    _SAVE: LiteralString = """
        INSERT INTO th_attempt_logs (job_id, token, attempt, worker_id, dropped, lines, saved_at)
        SELECT :id, :token, :attempt, :worker, :dropped, :lines, :now
          FROM th_jobs AS job
         WHERE job.id = :id
           AND coalesce(
               (
               SELECT outcome NOT IN ('LOST', 'CLOCK', 'REQUEUED')
                 FROM th_attempts
                WHERE job_id = :id
                  AND token = :token
               ),
               job.settled_token = :token
               )
            ON CONFLICT DO NOTHING
    """
    _IS_SAVED: LiteralString = """
        SELECT EXISTS (SELECT 1 FROM th_attempt_logs WHERE job_id = :id AND token = :token)
    """
    _REMOVE_SURPLUS: LiteralString = """
        DELETE FROM th_attempt_logs
         WHERE rowid IN (
               SELECT rowid
                 FROM th_attempt_logs
                WHERE job_id = :id
                ORDER BY rowid DESC
                LIMIT -1
               OFFSET :keep
               )
    """

    def save(self, logs: Sequence[AttemptLines], *, keep: int) -> list[bool]:
        with self._connections as (db, now):
            return [self._save(db, each, keep, now) for each in logs]

    def _save(self, db: sqlite3.Connection, log: AttemptLines, keep: int, now: int) -> bool:
        params = {
            "id": log.job_id.bytes,
            "token": log.token.bytes,
            "attempt": log.attempt,
            "worker": log.worker_id,
            "dropped": log.dropped,
            "lines": encode_lines(log.lines),
            "now": now,
            "keep": keep,
        }
        db.execute(self._SAVE, params)
        [is_saved] = db.execute(self._IS_SAVED, params).fetchone()
        db.execute(self._REMOVE_SURPLUS, params)
        return bool(is_saved)

    _READ: LiteralString = f"""
        SELECT {LOG}
          FROM th_attempt_logs
         WHERE job_id IN (%s)
         ORDER BY rowid
    """

    def read(self, job_ids: Sequence[JobId]) -> list[AttemptLines]:
        ids = [job_id.bytes for job_id in dict.fromkeys(job_ids)]
        saved: defaultdict[JobId, list[AttemptLines]] = defaultdict(list)
        with self._connections.read() as db:
            for each in map(attempt_lines, db.execute(self._READ % marks(ids), ids)):
                saved[each.job_id].append(each)
        return [each for job_id in job_ids for each in saved[job_id]]
