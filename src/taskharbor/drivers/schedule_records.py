"""The part of the driver protocol `Maintenance` that schedulers call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.model import NewJob, Schedule
    from taskharbor.core.schedule_runs import ScheduleRun


class ScheduleRecords(Protocol):
    """Schedules and their runs. The rules for every method are in `taskharbor.drivers.base`."""

    def due_schedules(self, *, limit: int, alive_within: timedelta) -> list[Schedule]:
        """Return up to *limit* schedules that are not paused and whose ``next_at`` has passed, earliest first.

        A schedule with ``declared_at`` is omitted unless a worker that was seen less than *alive_within* ago has it
        among its ``schedules``.
        """

    def advance_schedule(
        self,
        name: str,
        *,
        fired: datetime,
        next_at: datetime | None,
        jobs: Sequence[NewJob] = (),
        runs: Sequence[ScheduleRun] = (),
    ) -> bool:
        """Set a schedule's ``next_at`` and store *jobs* and *runs*, in one commit, if ``next_at`` still equals *fired*.

        Return True to the one caller that succeeds. The id of the last job becomes the schedule's ``last_job_id``, and
        *fired* its ``fired_at``; without jobs both stay. Listeners are notified as by `Driver.insert`.
        """

    def prune_schedules(self, *, undeclared_for: timedelta, alive_within: timedelta) -> int:
        """Remove schedules that no worker has declared for *undeclared_for*, and return their number.

        Set ``declared_at`` of the schedules that are declared now, by the rule of `due_schedules`. Remove those whose
        ``declared_at`` is at least *undeclared_for* ago, except paused ones.
        """

    def record_runs(self, runs: Sequence[ScheduleRun]) -> None:
        """Add runs of schedules; the store sets ``at``. Those of schedules that do not exist are ignored.

        Of each schedule, the newest `taskharbor.core.schedule_runs.KEPT_RUNS` are kept. They are removed with it. If
        the schema has no table for them yet, nothing is stored.
        """
