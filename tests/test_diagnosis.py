from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from taskharbor import Client, JobRequest, MemoryDriver
from taskharbor.core.errors import JobNotFound
from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId, new_job_id, new_token
from taskharbor.core.model import Claim, WorkerRecord
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Sent, Settlement
from taskharbor.diagnosis import MAX_COUNTED, Cause, Diagnosis, diagnose
from taskharbor.testing.clock import ManualClock

NOW: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
LEASE: Final = timedelta(seconds=30)
SECOND: Final = timedelta(seconds=1)


class DiagnosisRig:
    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.driver = MemoryDriver(clock=self.clock)
        self.client = Client(self.driver, clock=self.clock)

    def enqueue(self, **fields: Any) -> JobId:
        return self.client.enqueue(JobRequest(**{"type": "greet"} | fields)).id

    def start_worker(self, *, types: tuple[str, ...] = ("greet",), queues: tuple[str, ...] = ("default",)) -> None:
        record = WorkerRecord(
            id="w", host="h", pid=1, queues=queues, types=types, concurrency=4, started_at=self.clock.now()
        )
        self.driver.maintenance.record_worker(record)

    def take(self) -> Claim:
        [claim] = self.driver.reserve(
            "default", token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=LEASE
        )
        return claim

    def ask(self, job_id: JobId) -> Diagnosis:
        self.driver.maintenance.roll_up(keep=timedelta(days=1))
        return diagnose(self.driver.inspector, job_id)


@pytest.fixture
def yard() -> DiagnosisRig:
    return DiagnosisRig()


def test_a_job_that_is_not_there_is_not_found(yard: DiagnosisRig) -> None:
    with pytest.raises(JobNotFound):
        yard.ask(new_job_id())


def test_a_finished_job_reports_its_status_and_reason(yard: DiagnosisRig) -> None:
    job_id = yard.enqueue()
    yard.driver.settle([Settlement(yard.take().lease, Outcome.fail("hopeless", failure=Failure(message="boom")))])

    answer = yard.ask(job_id)

    assert answer.cause is Cause.FINAL
    assert answer.text == "it ended as DEAD at 2030-01-01T12:00:00Z: hopeless"


@pytest.mark.parametrize("is_requeued", [False, True])
def test_a_job_kept_by_an_unpublished_event_reports_it(is_requeued: bool, yard: DiagnosisRig) -> None:
    yard.driver.maintenance.claim_outbox(limit=1, lock=LEASE)  # there is a publisher
    job_id = yard.enqueue()
    yard.driver.settle([Settlement(yard.take().lease, Outcome.fail("hopeless"))])
    if is_requeued:
        yard.driver.requeue([job_id], token=new_token(), budget=1, by="ann", reason="fixed")
        yard.driver.settle([Settlement(yard.take().lease, Outcome.ack())])

    answer = yard.ask(job_id)

    assert answer.view()["kept"] == "unpublished"
    assert answer.text.endswith("; it cannot be removed yet: dead-letter event not published yet")


@pytest.mark.parametrize("away", [None, timedelta(days=7)], ids=["never seen", "away for long"])
def test_without_a_publisher_no_event_keeps_a_job(away: timedelta | None, yard: DiagnosisRig) -> None:
    if away is not None:
        yard.driver.maintenance.claim_outbox(limit=1, lock=LEASE)
        yard.clock.advance(away)
    job_id = yard.enqueue()
    yard.driver.settle([Settlement(yard.take().lease, Outcome.fail("hopeless"))])

    assert yard.ask(job_id).kept is None


def test_a_running_job_reports_its_worker_and_lease(yard: DiagnosisRig) -> None:
    job_id = yard.enqueue()
    yard.take()

    answer = yard.ask(job_id)

    assert (answer.cause, answer.worker, answer.until) == (Cause.LEASED, "w", NOW + LEASE)
    assert "cancel requested" not in answer.text


def test_a_running_job_reports_a_requested_cancel(yard: DiagnosisRig) -> None:
    job_id = yard.enqueue()
    yard.take()
    yard.driver.cancel([job_id])

    assert "cancel requested" in yard.ask(job_id).text


def test_a_job_with_an_expired_lease_reports_a_pending_reclaim(yard: DiagnosisRig) -> None:
    job_id = yard.enqueue()
    yard.take()
    yard.clock.advance(LEASE)

    assert yard.ask(job_id).cause is Cause.LEASE_OVER


def test_a_job_that_is_not_due_reports_its_time(yard: DiagnosisRig) -> None:
    job_id = yard.enqueue(delay=timedelta(hours=1))

    answer = yard.ask(job_id)

    assert (answer.cause, answer.until) == (Cause.NOT_DUE, NOW + timedelta(hours=1))
    assert "in 1:00:00" in answer.text


def test_a_failed_job_reports_when_it_is_retried(yard: DiagnosisRig) -> None:
    job_id = yard.enqueue()
    yard.driver.settle([Settlement(yard.take().lease, Outcome.retry(after=LEASE, failure=Failure(message="boom")))])

    assert "after its last attempt failed" in yard.ask(job_id).text


def test_a_job_in_a_paused_queue_reports_the_actor(yard: DiagnosisRig) -> None:
    job_id = yard.enqueue()
    yard.start_worker()
    yard.driver.control.pause(["default"], by="ada")

    answer = yard.ask(job_id)

    assert answer.cause is Cause.PAUSED
    assert "by ada" in answer.text


def test_a_job_in_an_unserved_queue_reports_no_worker(yard: DiagnosisRig) -> None:
    job_id = yard.enqueue()
    yard.start_worker(queues=("mail",))

    answer = yard.ask(job_id)

    assert answer.cause is Cause.UNHANDLED
    assert "no live worker serves queue 'default'" in answer.text


def test_a_job_of_an_unhandled_type_reports_it(yard: DiagnosisRig) -> None:
    job_id = yard.enqueue()
    yard.start_worker(types=("mail.send",))

    assert "none of the 1 live workers of queue 'default' handles type 'greet'" in yard.ask(job_id).text


def test_a_worker_without_recent_heartbeat_is_not_alive(yard: DiagnosisRig) -> None:
    job_id = yard.enqueue()
    yard.start_worker()
    yard.clock.advance(LEASE)

    assert yard.ask(job_id).cause is Cause.UNHANDLED


def test_a_dispatched_job_reports_that_it_waits_for_its_message(yard: DiagnosisRig) -> None:
    job_id = yard.enqueue()
    yard.start_worker()
    [dispatch] = yard.driver.dispatch("default", limit=1, lock=LEASE, unclaimed=10)
    assert "is not confirmed as sent" in yard.ask(job_id).text
    yard.driver.record_dispatch([Sent(dispatch, LEASE)])

    answer = yard.ask(job_id)

    assert (answer.cause, answer.until) == (Cause.MESSAGE, NOW + timedelta(seconds=60))
    assert "was sent at" in answer.text


def test_an_overdue_dispatched_job_reports_the_jobs_ahead(yard: DiagnosisRig) -> None:
    job_id = yard.enqueue()
    yard.driver.dispatch("default", limit=1, lock=LEASE, unclaimed=10)
    yard.clock.advance(timedelta(seconds=60))
    yard.start_worker()

    assert yard.ask(job_id).cause is Cause.NEXT


def test_jobs_ahead_are_due_jobs_with_higher_precedence(yard: DiagnosisRig) -> None:
    yard.start_worker()
    yard.enqueue(priority=-1)
    older = yard.enqueue()
    yard.enqueue(delay=LEASE)
    job_id = yard.enqueue()
    yard.enqueue(priority=1)

    answer = yard.ask(job_id)

    assert (answer.cause, answer.ahead, answer.text) == (Cause.AHEAD, 2, "2 jobs of its queue come first")
    assert yard.ask(older).text == "1 job of its queue comes first"


def test_jobs_ahead_in_a_long_queue_are_estimated(yard: DiagnosisRig) -> None:
    yard.start_worker()
    *_, last = [yard.enqueue() for _ in range(MAX_COUNTED + 30)]

    answer = yard.ask(last)

    assert (answer.ahead, answer.text) == (MAX_COUNTED + 29, f"about {MAX_COUNTED + 29} jobs of its queue come first")


def test_a_job_without_jobs_ahead_is_next(yard: DiagnosisRig) -> None:
    yard.start_worker()

    answer = yard.ask(yard.enqueue())

    assert (answer.cause, answer.ahead) == (Cause.NEXT, 0)
    assert json.loads(json.dumps(answer.view()))["cause"] == "next"
