"""Checks the invariants on the stored rows."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, LiteralString
from uuid import UUID

from taskharbor.core.audit import AuditPage, AuditPart
from taskharbor.drivers.audit_rules import AUDIT_COLUMNS, audit_page, audit_statement
from taskharbor.drivers.postgres.schema import OPERATORS_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.postgres.pool import PostgresPool

# While retention removes a day, its jobs are gone before their attempts, events and keys.
_IS_WHOLE: Final[LiteralString] = "NOT EXISTS (SELECT FROM th_pruning WHERE is_detached) AS is_whole"
# WITH TIES keeps the rows of one job on one page.
_PAGE: Final[LiteralString] = "ORDER BY 1 FETCH FIRST %(limit)s ROWS WITH TIES"


def _page(columns: LiteralString, table: LiteralString) -> LiteralString:
    return f"SELECT {columns}, {_IS_WHOLE} FROM {table} WHERE job_id > %(after)s {_PAGE}"


_STATEMENTS: Final[Mapping[AuditPart, LiteralString]] = MappingProxyType(
    {
        AuditPart.JOBS: audit_statement(
            AuditPart.JOBS,
            f"""SELECT job.*,
                       count(*) OVER (PARTITION BY job.id) AS copies,
                       (SELECT paused_at + interval '1 minute' FROM th_queues WHERE name = job.queue) AS paused_from
                  FROM (SELECT {AUDIT_COLUMNS} FROM th_jobs WHERE id > %(after)s {_PAGE}) AS job""",
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
_BEFORE_ALL: Final = UUID(int=0)


class PostgresAuditor:
    def __init__(self, connections: PostgresPool) -> None:
        self._connections = connections

    def audit(self, part: AuditPart, *, limit: int, after: JobId | None = None) -> AuditPage:
        if part is AuditPart.RUNS and self._connections.schema_version < OPERATORS_VERSION:
            return AuditPage(0, (), None)
        rows = self._connections.fetch(_STATEMENTS[part], limit=limit, after=after or _BEFORE_ALL)
        return audit_page(part, rows, limit)
