"""Checks the invariants on the stored rows."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, LiteralString

from taskharbor.core.audit import AuditPage, AuditPart
from taskharbor.drivers.audit_rules import AUDIT_COLUMNS, audit_page, audit_statement
from taskharbor.drivers.sqlite.rows import job_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.sqlite.pool import SqlitePool


def _page(columns: LiteralString, table: LiteralString) -> LiteralString:
    """Return a query for the rows of the next jobs. The rows of one job are on one page."""
    return f"""
        SELECT {columns}, 1 AS is_whole
          FROM {table}
         WHERE job_id > :after
           AND job_id <= coalesce(
               (SELECT job_id FROM {table} WHERE job_id > :after ORDER BY job_id LIMIT 1 OFFSET :limit - 1),
               (SELECT max(job_id) FROM {table})
               )
    """


_STATEMENTS: Final[Mapping[AuditPart, LiteralString]] = MappingProxyType(
    {
        AuditPart.JOBS: audit_statement(
            AuditPart.JOBS,
            f"""SELECT {AUDIT_COLUMNS},
                       1 AS copies,
                       (SELECT paused_at + 60 * 1000000 FROM th_queues WHERE name = queue) AS paused_from
                  FROM th_jobs
                 WHERE id > :after
                 ORDER BY id
                 LIMIT :limit""",
        ),
        AuditPart.ATTEMPTS: audit_statement(
            AuditPart.ATTEMPTS, _page("job_id AS id, event, status, life", "th_attempts")
        ),
        AuditPart.EVENTS: audit_statement(AuditPart.EVENTS, _page("job_id AS id, life", "th_outbox")),
        AuditPart.KEYS: audit_statement(AuditPart.KEYS, _page("job_id AS id, queue, key", "th_keys")),
        AuditPart.RUNS: audit_statement(
            AuditPart.RUNS,
            _page("job_id AS id, schedule, fire_time", "th_schedule_runs"),  # a hundred of each schedule
        ),
    }
)


class SqliteAuditor:
    def __init__(self, connections: SqlitePool) -> None:
        self._connections = connections

    def audit(self, part: AuditPart, *, limit: int, after: JobId | None = None) -> AuditPage:
        values = {"limit": limit, "after": b"" if after is None else after.bytes}
        with self._connections.read() as db:
            rows = db.execute(_STATEMENTS[part], values).fetchall()
        return audit_page(part, [(job_id(each), number, broken) for each, number, broken in rows], limit)
