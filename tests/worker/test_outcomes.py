"""The outcome of a job, depending on what its handler does."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor import Client, JobRequest, Worker
from taskharbor.core.hooks import AttemptFailed
from taskharbor.core.ids import new_token
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.outcome import Cancel, DeadLetter, Retry, Snooze
from taskharbor.core.retry import Fixed, RetryPolicy
from taskharbor.core.states import Status
from taskharbor.runtime import ThreadRuntime
from tests.support.worker_rig import NOW, SHORT, drained, ended, enqueue, running_worker, stored, worker_for

if TYPE_CHECKING:
    from taskharbor.core.hooks import HookEvent
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Attempt, Job
    from taskharbor.drivers.base import Driver

HOUR: Final = timedelta(hours=1)
SOON: Final = timedelta(milliseconds=100)


def _attempts(driver: Driver, job_id: JobId) -> list[Attempt]:
    return driver.inspector.attempts([job_id])


def _raising(error: BaseException) -> Any:
    def handler(_job: Job) -> None:
        raise error

    return handler


def test_a_handler_that_raises_is_tried_again_by_the_policy(driver: Driver) -> None:
    job_id = enqueue(driver, "fail")

    drained(driver, {"fail": _raising(ValueError("boom"))})

    job = stored(driver, job_id)
    assert job.status is (Status.ENQUEUED if job.sends else Status.FAILED)
    assert job.last_error is not None
    assert "boom" in job.last_error
    assert [each.outcome for each in _attempts(driver, job_id)] == [AttemptOutcome.FAILED]


def test_the_worker_decides_on_delays_and_the_client_on_attempts(driver: Driver) -> None:
    client = Client(driver, max_attempts=4)
    default, own = (client.enqueue(JobRequest(type=type)).id for type in ("default", "own"))
    worker = Worker(driver, policy=RetryPolicy(backoff=Fixed(HOUR)))
    worker.register("default", _raising(ValueError("boom")))
    worker.register("own", _raising(ValueError("boom")), policy=RetryPolicy(backoff=Fixed(2 * HOUR)))

    worker.drain()

    delays = [stored(driver, each).scheduled_for - driver.inspector.now() for each in (default, own)]
    assert [round(delay / HOUR, 1) for delay in delays] == [1.0, 2.0]
    assert [stored(driver, each).max_attempts for each in (default, own)] == [4, 4]


def test_a_retry_waits_for_as_long_as_the_handler_asked(driver: Driver) -> None:
    job_id = enqueue(driver, "fail")

    drained(driver, {"fail": _raising(Retry("later", after=HOUR))})

    job = stored(driver, job_id)
    assert job.status is (Status.ENQUEUED if job.sends else Status.FAILED)
    assert HOUR * 0.9 < job.scheduled_for - driver.inspector.now() <= HOUR


def test_a_job_that_fails_at_first_succeeds_in_the_end(driver: Driver) -> None:
    def succeed_at_third(job: Job) -> int:
        if job.attempt_count < 3:
            raise Retry(after=NOW)
        return job.attempt_count

    job_id = enqueue(driver, "try", max_attempts=5)

    drained(driver, {"try": succeed_at_third})

    job = stored(driver, job_id)
    assert (job.status, job.attempt_count, job.result) == (Status.SUCCEEDED, 3, b"3")


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
def test_a_worker_is_not_drained_while_a_job_that_just_failed_may_be_due_again(driver: Driver) -> None:
    def fail_at_first(job: Job) -> None:
        if job.attempt_count == 1:
            threading.Event().wait(0.4)  # meanwhile the worker polls, and finds nothing
            raise Retry(after=NOW)

    def delay(event: HookEvent) -> None:
        if isinstance(event, AttemptFailed):
            threading.Event().wait(0.15)  # no job is running now, and the source has not polled again

    job_id = enqueue(driver, "try")

    drained(driver, {"try": fail_at_first}, hooks=[delay], poll=HOUR)

    assert stored(driver, job_id).status is Status.SUCCEEDED


def test_a_job_with_exhausted_attempts_is_a_dead_letter_with_its_event(driver: Driver) -> None:
    job_id = enqueue(driver, "fail", max_attempts=2)

    drained(driver, {"fail": _raising(Retry(after=NOW))})

    job = stored(driver, job_id)
    assert (job.status, job.attempt_count) == (Status.DEAD, 2)
    assert len(_attempts(driver, job_id)) == 2
    assert len(driver.inspector.outbox([job_id])) == 1


def test_each_type_may_have_a_policy_of_its_own(driver: Driver) -> None:
    job_id = enqueue(driver, "fail")
    worker = worker_for(driver, {})
    worker.register("fail", lambda _job: 1 / 0, policy=RetryPolicy(backoff=Fixed(HOUR)))

    worker.drain()

    assert HOUR * 0.9 < stored(driver, job_id).scheduled_for - driver.inspector.now() <= HOUR


def test_a_snoozed_job_comes_back_later_and_no_attempt_is_counted(driver: Driver) -> None:
    job_id = enqueue(driver, "nap")

    drained(driver, {"nap": _raising(Snooze(HOUR))})

    job = stored(driver, job_id)
    assert (job.status.is_waiting, job.attempt_count) == (True, 0)
    assert job.scheduled_for > driver.inspector.now() + HOUR * 0.9


def test_a_job_may_be_snoozed_until_a_moment(driver: Driver) -> None:
    until = datetime.now(UTC) + HOUR
    job_id = enqueue(driver, "nap")

    drained(driver, {"nap": _raising(Snooze(until=until))})

    assert abs(stored(driver, job_id).scheduled_for - until) < HOUR / 10


def test_a_job_is_snoozed_until_a_moment_of_the_stores_clock(driver: Driver) -> None:
    class AnHourAhead(ThreadRuntime):
        def now(self) -> datetime:
            return super().now() + HOUR

    until = driver.inspector.now() + HOUR
    job_id = enqueue(driver, "nap")

    drained(driver, {"nap": _raising(Snooze(until=until))}, runtime=AnHourAhead(sync_threads=16))

    assert abs(stored(driver, job_id).scheduled_for - until) < HOUR / 10


def test_a_handler_may_cancel_its_job(driver: Driver) -> None:
    job_id = enqueue(driver, "stop")

    drained(driver, {"stop": _raising(Cancel("no longer wanted"))})

    assert stored(driver, job_id).status is Status.CANCELED
    [attempt] = _attempts(driver, job_id)
    assert attempt.failure is not None
    assert attempt.failure.message == "no longer wanted"


def test_a_handler_may_make_its_job_a_dead_letter(driver: Driver) -> None:
    job_id = enqueue(driver, "stop", max_attempts=9)

    drained(driver, {"stop": _raising(DeadLetter("the account is gone"))})

    job = stored(driver, job_id)
    assert (job.status, job.dead_reason) == (Status.DEAD, "the account is gone")


def test_a_job_without_a_handler_becomes_a_dead_letter_with_that_reason(driver: Driver) -> None:
    job_id = enqueue(driver, "unheard.of")

    drained(driver, {"greet": print}, unknown_types="dead-letter")

    job = stored(driver, job_id)
    assert job.status is Status.DEAD
    assert job.dead_reason == "no handler for type 'unheard.of' is registered here"


def test_a_job_without_a_handler_is_left_for_others_on_request(driver: Driver) -> None:
    other, ours = enqueue(driver, "unheard.of"), enqueue(driver, "greet")

    drained(driver, {"greet": lambda _job: None}, unknown_types="leave")

    assert stored(driver, ours).status is Status.SUCCEEDED
    assert (stored(driver, other).status.is_waiting, stored(driver, other).attempt_count) == (True, 0)


def test_a_worker_reclaims_only_jobs_that_it_has_handlers_for(driver: Driver) -> None:
    other, ours = enqueue(driver, "unheard.of"), enqueue(driver, "greet")
    driver.reserve("default", token=new_token(), worker="dead", lease=SOON, limit=2, overdue_after=HOUR)

    with running_worker(driver, {"greet": lambda _job: None}, unknown_types="leave", lease=SHORT, janitor=False):
        job = ended(driver, ours)

    assert (job.status, job.attempt_count) == (Status.SUCCEEDED, 2)
    assert (stored(driver, other).status, stored(driver, other).attempt_count) == (Status.PROCESSING, 1)
