"""Cancels jobs, and reports those that became CANCELED without a worker's outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.core.hooks import JobCanceled
from taskharbor.core.results import Transitioned

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taskharbor.core.errors import IllegalTransition, JobNotFound
    from taskharbor.core.ids import JobId
    from taskharbor.core.results import Cancellation
    from taskharbor.drivers.base import Driver
    from taskharbor.observability.hook_caller import HookCaller


def cancel_jobs(
    driver: Driver, job_ids: Sequence[JobId], call_hooks: HookCaller
) -> list[Transitioned | IllegalTransition | JobNotFound]:
    """Cancel jobs as `Driver.cancel` does, and call the hooks with those that waited: they are canceled now.

    A running job is reported by the worker that stops it.
    """
    answers = driver.cancel(job_ids)
    report_canceled([each.cancellation for each in answers if isinstance(each, Transitioned)], call_hooks)
    return answers


def report_canceled(cancellations: Iterable[Cancellation | None], call_hooks: HookCaller) -> None:
    """Call the hooks with a `JobCanceled` for each job. None stands for a job that was not canceled."""
    if call_hooks:
        call_hooks.all(
            JobCanceled(job_id=each.job_id, type=each.type, queue=each.queue)
            for each in cancellations
            if each is not None
        )
