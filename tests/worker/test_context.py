"""The progress that a handler reports."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.errors import UsageError
from taskharbor.core.model import Progress
from tests.support.waiting import wait_until
from tests.support.worker_rig import drained, enqueue, stored

if TYPE_CHECKING:
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver
    from taskharbor.worker import Context

MAX_INT = 2**63 - 1


@pytest.mark.parametrize(
    "reported", [(10**5000,), (1, 10**5000), (MAX_INT + 1,), (-MAX_INT - 2,)], ids=["5000", "of 5000", "over", "under"]
)
def test_progress_too_large_to_store_is_refused_and_loses_no_progress_of_others(
    driver: Driver, reported: tuple[Any, ...]
) -> None:
    def render(_job: Job, ctx: Context) -> None:
        ctx.progress(-MAX_INT - 1, MAX_INT)
        with pytest.raises(UsageError, match=r"progress is .*: done and total must be integers of at most 64 bits"):
            ctx.progress(*reported)
        wait_until(lambda: stored(driver, job_id).progress is not None)

    job_id = enqueue(driver, "render", max_attempts=1)

    drained(driver, {"render": render})

    assert stored(driver, job_id).progress == Progress(-MAX_INT - 1, MAX_INT)


def test_a_context_has_the_job_its_id_attempt_token_and_deadline(driver: Driver) -> None:
    seen: list[tuple[object, ...]] = []

    def run(job: Job, ctx: Context) -> None:
        seen.append((ctx.job, ctx.job_id, ctx.attempt, ctx.token, ctx.deadline))
        assert ctx.job is job

    timed, untimed = enqueue(driver, "run", timeout=timedelta(minutes=1)), enqueue(driver, "run")
    drained(driver, {"run": run})

    by_id, job = {each[1]: each for each in seen}, stored(driver, timed)
    assert job.processing_started_at is not None
    assert by_id[timed][2:] == (1, job.settled_token, job.processing_started_at + timedelta(minutes=1))
    assert by_id[untimed][4] is None
