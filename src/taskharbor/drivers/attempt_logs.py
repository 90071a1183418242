"""The part of the driver contract that keeps the log lines of attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.log_lines import AttemptLines


class AttemptLogs(Protocol):
    """The captured log lines of attempts. They are removed with their job.

    Both methods raise `SchemaOutOfDate` if the schema has no table for them yet.
    """

    def save(self, logs: Sequence[AttemptLines], *, keep: int) -> list[bool]:
        """Store the lines of attempts whose outcomes are recorded under their tokens; the store sets ``saved_at``.

        The result is False, and nothing is stored, if there is no such job, or no recorded outcome of this token: the
        lease was lost. Lines that were stored before stay as they are, and yield True. If a job has lines of more than
        *keep* attempts then, those that were saved first are removed.
        """

    def read(self, job_ids: Sequence[JobId]) -> list[AttemptLines]:
        """Return the lines of these jobs, in the order of *job_ids*, each job's in the order they were saved."""
