"""The driver protocol for stored bulk operations. The rules for every method are in `taskharbor.drivers.base`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.core.operations import NewOperation, Operation, OperationId, OperationStep, PerformedStep


class Operations(Protocol):
    """Stores operations and performs their steps.

    If the schema has no operations yet, reads return nothing, and `add` and `stop` raise `SchemaOutOfDate`.
    """

    def add(self, operations: Sequence[NewOperation], *, starts_in: timedelta) -> list[bool]:
        """Store new operations, whose first step may be performed at now + *starts_in*.

        The result is False if the id already exists; that operation is not changed.
        """

    def get(self, ids: Sequence[OperationId]) -> dict[OperationId, Operation]:
        """Return the operations that exist among *ids*, by id."""

    def recent(self, *, limit: int, before: OperationId | None = None) -> list[Operation]:
        """Return up to *limit* operations, newest first, starting below the operation *before*.

        Their ``job_ids`` are empty: an operation may have thousands.
        """

    def unfinished(self, *, limit: int) -> list[tuple[OperationId, timedelta]]:
        """Return up to *limit* operations that have not ended, and the time until each one's next step, earliest first.

        That time is zero or less if the step is due.
        """

    def perform(self, step: OperationStep) -> PerformedStep | None:
        """Perform *step*, and return what it did, or None if it is not the next step, or not due.

        The step is of an operation as `get` returned it.

        In one commit, change the jobs of the step, and store what `taskharbor.core.operations.after_step` returns. So
        of several callers with the same step, one performs it. A caller that was suspended for hours performs nothing.
        Nothing is changed while another caller performs a step of the same operation; the result is None.

        A job is changed as by `Driver.cancel`, `Driver.requeue` (with the operation's ``by`` and ``reason``, and the
        token of the step), `Driver.reschedule` and `Maintenance.purge`. It is refused if it does not exist, is not in
        one of the statuses of the kind, or came (`Operation.came_at`) after `Operation.until`, and a purge refuses a
        job with an event that is neither published nor given up. Do not wait for rows that another transaction has
        locked: those jobs stay among the ``job_ids`` of the operation.
        """

    def stop(self, ids: Sequence[OperationId], *, by: str) -> list[bool]:
        """Stop operations: no job is changed after this call. The result is False if there is none, or it has ended.

        It waits for a step that is being performed.
        """

    def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Remove up to *limit* operations that ended at least *older_than* ago, and return their number."""
