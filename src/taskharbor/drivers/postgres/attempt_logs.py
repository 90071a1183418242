"""The log lines of attempts."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, LiteralString

from taskharbor.core.errors import SchemaOutOfDate
from taskharbor.core.log_lines import encode_lines
from taskharbor.drivers.migrate import RUN_MIGRATIONS
from taskharbor.drivers.postgres.rows import LOG, NOW, attempt_lines, uuids
from taskharbor.drivers.postgres.schema import MIGRATIONS, OPERATORS_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.log_lines import AttemptLines
    from taskharbor.drivers.postgres.pool import PostgresPool


class PostgresAttemptLogs:
    def __init__(self, connections: PostgresPool, read_pool: PostgresPool) -> None:
        self._connections = connections
        self._read_pool = read_pool

    _SAVE: LiteralString = f"""
        WITH recorded AS (
            SELECT given.*
              FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[], %(attempts)s::integer[], %(workers)s::text[],
                          %(dropped)s::bigint[], %(lines)s::text[])
                   AS given (job_id, token, attempt, worker_id, dropped, lines)
             -- OFFSET 0 makes each id an index lookup: for a join, the planner may scan leaves that it estimates as
             -- empty.
             CROSS JOIN LATERAL (SELECT settled_token FROM th_jobs WHERE id = given.job_id OFFSET 0) AS job
             WHERE coalesce(
                   (
                   SELECT past.outcome NOT IN ('LOST', 'CLOCK', 'REQUEUED')
                     FROM th_attempts AS past
                    WHERE past.job_id = given.job_id
                      AND past.token = given.token
                   ),
                   job.settled_token = given.token
                   )
        ),
        saved AS (
            INSERT INTO th_attempt_logs (job_id, token, attempt, worker_id, dropped, lines, saved_at)
            SELECT recorded.*, {NOW}
              FROM recorded
                ON CONFLICT DO NOTHING
            RETURNING job_id
        ),
        surplus AS (
            -- This does not see the rows that were just added, one for each of these jobs.
            DELETE FROM th_attempt_logs
             WHERE number = ANY (ARRAY(
                   SELECT older.number
                     FROM saved
                    CROSS JOIN LATERAL (
                          SELECT number
                            FROM th_attempt_logs
                           WHERE job_id = saved.job_id
                           ORDER BY number DESC
                          OFFSET %(keep)s - 1
                          ) AS older
                   ))
               AND job_id = ANY (%(ids)s::uuid[])
        )
        SELECT job_id
          FROM recorded
    """

    def save(self, logs: Sequence[AttemptLines], *, keep: int) -> list[bool]:
        self._check_schema()
        columns: dict[str, Any] = {
            "ids": uuids(each.job_id for each in logs),
            "tokens": uuids(each.token for each in logs),
            "attempts": [each.attempt for each in logs],
            "workers": [each.worker_id for each in logs],
            "dropped": [each.dropped for each in logs],
            "lines": [encode_lines(each.lines) for each in logs],
        }
        recorded = {job_id for (job_id,) in self._connections.fetch(self._SAVE, **columns, keep=keep)}
        return [each.job_id in recorded for each in logs]

    _READ: LiteralString = f"""
        SELECT {LOG}
          FROM th_attempt_logs
         WHERE job_id = ANY (%(ids)s)
         ORDER BY number
    """

    def read(self, job_ids: Sequence[JobId]) -> list[AttemptLines]:
        self._check_schema()
        saved: defaultdict[JobId, list[AttemptLines]] = defaultdict(list)
        for each in map(attempt_lines, self._read_pool.fetch(self._READ, ids=list(job_ids))):
            saved[each.job_id].append(each)
        return [each for job_id in job_ids for each in saved[job_id]]

    def _check_schema(self) -> None:
        if self._connections.schema_version < OPERATORS_VERSION:
            found, wanted = str(self._connections.schema_version), str(len(MIGRATIONS))
            raise SchemaOutOfDate(found, wanted, RUN_MIGRATIONS)
