"""The part of the driver protocol `Maintenance` that workers call: their records, and calls that were refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.core.model import WorkerRecord
    from taskharbor.core.results import Refusal


class WorkerRecords(Protocol):
    """Records of workers. The rules for every method are in `taskharbor.drivers.base`."""

    def record_worker(self, worker: WorkerRecord) -> None:
        """Record that a worker is alive, with its configuration. The store sets ``seen_at``."""

    def remove_worker(self, worker_id: str) -> None:
        """Make a worker that has stopped a past one, with ``stopped_at``. Its record may be missing."""

    def prune_workers(self, *, unseen_for: timedelta, keep: timedelta) -> int:
        """Make workers past ones that were last seen at least *unseen_for* ago; remove past ones after *keep*.

        Return the number of those that became past ones.
        """

    def record_refusals(self, refusals: Sequence[Refusal]) -> None:
        """Record refused calls, at most one per attempt. Those of jobs that do not exist are ignored."""
