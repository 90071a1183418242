"""The log lines of attempts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taskharbor.core.model import AttemptOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from taskharbor.core.ids import JobId
    from taskharbor.core.log_lines import AttemptLines
    from taskharbor.drivers.memory.tables import Tables


class MemoryAttemptLogs:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def save(self, logs: Sequence[AttemptLines], *, keep: int) -> list[bool]:
        with self._tables.statement() as now:
            return [self._save(each, keep, now) for each in logs]

    def _save(self, log: AttemptLines, keep: int, now: datetime) -> bool:
        if not self._is_recorded(log):
            return False
        saved = self._tables.rows.logs[log.job_id]
        if log.token not in saved:
            saved[log.token] = replace(log, saved_at=now)
            for token in [*saved][:-keep]:
                del saved[token]
        return True

    def _is_recorded(self, log: AttemptLines) -> bool:
        job = self._tables.rows.jobs.get(log.job_id)
        if job is None:
            return False
        attempt = self._tables.rows.attempts.get(log.job_id, {}).get(log.token)
        if attempt is None:
            return job.settled_token == log.token
        return attempt.outcome not in {AttemptOutcome.LOST, AttemptOutcome.CLOCK, AttemptOutcome.REQUEUED}

    def read(self, job_ids: Sequence[JobId]) -> list[AttemptLines]:
        with self._tables.statement():
            logs = self._tables.rows.logs
            return [log for job_id in job_ids for log in logs.get(job_id, {}).values()]
