from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from taskharbor import Client, JobRequest, MemoryDriver
from taskharbor.core.claims import UNHANDLED_AFTER
from taskharbor.core.errors import JobNotFound
from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId, new_job_id, new_token
from taskharbor.core.messages import DeliveryNote, DeliveryRole
from taskharbor.core.model import Claim, WorkerRecord
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Sent, Settlement
from taskharbor.diagnosis import MAX_COUNTED, Cause, Diagnosis, diagnose
from taskharbor.testing.clock import ManualClock

NOW: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
LEASE: Final = timedelta(seconds=30)
SECOND: Final = timedelta(seconds=1)
HOUR: Final = timedelta(hours=1)


class DiagnosisRig:
    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.driver = MemoryDriver(clock=self.clock)
        self.client = Client(self.driver, clock=self.clock)

    def enqueue(self, **fields: Any) -> JobId:
        return self.client.enqueue(JobRequest(**{"type": "greet"} | fields)).id

    def start_worker(
        self, *, types: tuple[str, ...] = ("greet",), queues: tuple[str, ...] = ("default",), busy: int = 0
    ) -> None:
        record = WorkerRecord(
            id="w",
            host="h",
            pid=1,
            queues=queues,
            types=types,
            concurrency=4,
            started_at=self.clock.now(),
            busy_slots=busy,
        )
        self.driver.maintenance.record_worker(record)

    def note(self, role: DeliveryRole, problem: str = "") -> None:
        self.driver.maintenance.record_delivery([DeliveryNote(queue="default", role=role, problem=problem)])

    def claim(self) -> Claim:
        [claim] = self.driver.reserve(
            "default", token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=LEASE
        )
        return claim

    def ask(self, job_id: JobId) -> Diagnosis:
        self.driver.maintenance.roll_up(keep=timedelta(days=1))
        return diagnose(self.driver.inspector, job_id)


@pytest.fixture
def rig() -> DiagnosisRig:
    return DiagnosisRig()


def test_a_job_that_is_not_there_is_not_found(rig: DiagnosisRig) -> None:
    with pytest.raises(JobNotFound):
        rig.ask(new_job_id())


def test_a_finished_job_reports_its_status_and_reason(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.driver.settle([Settlement(rig.claim().lease, Outcome.fail("hopeless", failure=Failure(message="boom\nmore")))])

    answer = rig.ask(job_id)

    assert answer.cause is Cause.FINAL
    assert answer.text == "it ended at 2030-01-01T12:00:00Z: hopeless: boom"


@pytest.mark.parametrize("is_requeued", [False, True])
def test_a_job_kept_by_an_unpublished_event_reports_it(is_requeued: bool, rig: DiagnosisRig) -> None:
    rig.driver.maintenance.claim_outbox(limit=1, lock=LEASE)  # a publisher is active
    job_id = rig.enqueue()
    rig.driver.settle([Settlement(rig.claim().lease, Outcome.fail("hopeless"))])
    if is_requeued:
        rig.driver.requeue([job_id], token=new_token(), budget=1, by="ann", reason="fixed")
        rig.driver.settle([Settlement(rig.claim().lease, Outcome.ack())])

    answer = rig.ask(job_id)

    assert answer.view()["kept"] == "unpublished"
    assert answer.text.endswith("; it cannot be removed yet: dead-letter event not published yet")


@pytest.mark.parametrize("away", [None, timedelta(days=7)], ids=["never seen", "away for long"])
def test_without_a_publisher_no_event_keeps_a_job(away: timedelta | None, rig: DiagnosisRig) -> None:
    if away is not None:
        rig.driver.maintenance.claim_outbox(limit=1, lock=LEASE)
        rig.clock.advance(away)
    job_id = rig.enqueue()
    rig.driver.settle([Settlement(rig.claim().lease, Outcome.fail("hopeless"))])

    assert rig.ask(job_id).kept is None


def test_a_running_job_reports_its_worker_and_lease(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.claim()

    answer = rig.ask(job_id)

    assert (answer.cause, answer.worker, answer.until) == (Cause.LEASED, "w", NOW + LEASE)
    assert "cancel requested" not in answer.text


def test_a_running_job_reports_a_requested_cancel(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.claim()
    rig.driver.cancel([job_id])

    assert "cancel requested" in rig.ask(job_id).text


def test_a_job_with_an_expired_lease_reports_a_pending_reclaim(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.claim()
    rig.clock.advance(LEASE)

    assert rig.ask(job_id).cause is Cause.LEASE_OVER


def test_a_job_that_is_not_due_reports_its_time(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue(delay=timedelta(hours=1))

    answer = rig.ask(job_id)

    assert (answer.cause, answer.until) == (Cause.NOT_DUE, NOW + timedelta(hours=1))
    assert "in 1:00:00" in answer.text


def test_a_failed_job_reports_when_it_is_retried(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.driver.settle([Settlement(rig.claim().lease, Outcome.retry(after=LEASE, failure=Failure(message="boom")))])

    assert "after its last attempt failed" in rig.ask(job_id).text


def test_a_job_in_a_paused_queue_reports_the_actor(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.start_worker()
    rig.driver.control.pause(["default"], by="ada")

    answer = rig.ask(job_id)

    assert answer.cause is Cause.PAUSED
    assert "by ada" in answer.text


def test_a_job_in_an_unserved_queue_reports_no_worker(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.start_worker(queues=("mail",))

    answer = rig.ask(job_id)

    assert answer.cause is Cause.UNHANDLED
    assert "no live worker serves queue 'default'" in answer.text


def test_a_job_of_an_unhandled_type_reports_it(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.start_worker(types=("mail.send",))

    left = rig.ask(job_id)
    rig.clock.advance(UNHANDLED_AFTER)
    rig.start_worker(types=("mail.send",))
    late = rig.ask(job_id)

    assert (left.until, late.until) == (NOW + UNHANDLED_AFTER, None)
    assert left.text == (
        "no live worker of queue 'default' handles type 'greet': start one that does; it is left for other workers "
        "until 2030-01-01T12:05:00Z, then it becomes a dead letter (by default; see --unknown-types)"
    )
    assert late.text.endswith(
        "; it was left for other workers until 2030-01-01T12:05:00Z, and becomes a dead letter when a slot is free, "
        "unless workers run with --unknown-types leave"
    )


def test_a_worker_without_recent_heartbeat_is_not_alive(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.start_worker()
    rig.clock.advance(LEASE)

    assert rig.ask(job_id).cause is Cause.UNHANDLED


def test_a_dispatched_job_reports_that_it_waits_for_its_message(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.start_worker()
    [dispatch] = rig.driver.dispatch("default", limit=1, lock=LEASE, unclaimed=10)
    rig.note(DeliveryRole.SENDER)
    assert rig.ask(job_id).text.startswith("its message is being sent; ")
    rig.driver.record_dispatch([Sent(dispatch, LEASE)])

    answer = rig.ask(job_id)

    assert (answer.cause, answer.until) == (Cause.MESSAGE, NOW + timedelta(seconds=60))
    assert answer.text == (
        "its message was sent at 2030-01-01T12:00:00Z, and no worker has received it yet; "
        "if no message arrives, workers claim the job from the store at 2030-01-01T12:01:00Z"
    )


def test_the_message_of_an_earlier_attempt_is_not_waited_for(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.start_worker()
    rig.note(DeliveryRole.SENDER)
    [dispatch] = rig.driver.dispatch("default", limit=1, lock=LEASE, unclaimed=10)
    rig.driver.record_dispatch([Sent(dispatch, LEASE)])
    [claimed] = rig.driver.claim([job_id], queue="default", token=new_token(), worker="w", lease=LEASE)
    assert isinstance(claimed, Claim)
    rig.driver.settle([Settlement(claimed.lease, Outcome.retry(after=timedelta(0)))])

    assert rig.ask(job_id).text.startswith("the enqueuer of queue 'default' has not sent its message yet; ")

    rig.driver.dispatch("default", limit=1, lock=LEASE, unclaimed=10)
    assert rig.ask(job_id).text.startswith("its message is being sent; ")


def test_a_due_job_of_a_queue_with_messages_reports_a_missing_enqueuer(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.start_worker()
    rig.note(DeliveryRole.SENDER)
    rig.clock.advance(LEASE)
    rig.start_worker()
    rig.note(DeliveryRole.RECEIVER)

    answer = rig.ask(job_id)

    assert (answer.cause, answer.until) == (Cause.NO_ENQUEUER, NOW + timedelta(seconds=60))
    assert answer.text == (
        "its message is not sent, because no enqueuer serves queue 'default': "
        "start one: taskharbor enqueuer -q default; "
        "if no message arrives, workers claim the job from the store at 2030-01-01T12:01:00Z"
    )


@pytest.mark.parametrize("is_dispatched", [False, True])
def test_a_message_that_cannot_be_sent_reports_the_error(is_dispatched: bool, rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.start_worker()
    if is_dispatched:
        rig.driver.dispatch("default", limit=1, lock=LEASE, unclaimed=10)
    rig.note(DeliveryRole.RECEIVER)
    rig.note(DeliveryRole.SENDER, "queue taskharbor-default does not exist; create it")

    answer = rig.ask(job_id)

    assert answer.cause is Cause.SEND_FAILED
    assert answer.text.startswith("its message cannot be sent: queue taskharbor-default does not exist; create it; ")


def test_a_sent_message_that_cannot_be_received_reports_the_error(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.start_worker()
    [dispatch] = rig.driver.dispatch("default", limit=1, lock=LEASE, unclaimed=10)
    rig.driver.record_dispatch([Sent(dispatch, LEASE)])
    rig.note(DeliveryRole.RECEIVER, "access denied")

    answer = rig.ask(job_id)

    assert answer.cause is Cause.RECEIVE_FAILED
    assert "but workers cannot receive messages of queue 'default': access denied; " in answer.text


def test_a_due_job_waits_for_an_enqueuer_that_works(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.start_worker()
    rig.note(DeliveryRole.RECEIVER)
    rig.note(DeliveryRole.SENDER)

    answer = rig.ask(job_id)

    assert answer.cause is Cause.MESSAGE
    assert answer.text.startswith("the enqueuer of queue 'default' has not sent its message yet; ")


@pytest.mark.parametrize("receives", [False, True])
def test_without_messages_or_after_a_minute_a_job_waits_for_a_slot(receives: bool, rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    if receives:
        rig.clock.advance(timedelta(seconds=60))
        rig.note(DeliveryRole.RECEIVER)
    rig.start_worker()

    assert rig.ask(job_id).cause is Cause.NEXT


def test_an_overdue_dispatched_job_no_longer_waits_for_its_message(rig: DiagnosisRig) -> None:
    job_id = rig.enqueue()
    rig.driver.dispatch("default", limit=1, lock=LEASE, unclaimed=10)
    rig.clock.advance(timedelta(seconds=60))
    rig.start_worker()

    assert rig.ask(job_id).cause is Cause.NEXT


def test_jobs_ahead_are_due_jobs_with_higher_precedence(rig: DiagnosisRig) -> None:
    rig.start_worker()
    rig.enqueue(priority=-1)
    older = rig.enqueue()
    rig.enqueue(delay=LEASE)
    job_id = rig.enqueue()
    rig.enqueue(priority=1)

    answer = rig.ask(job_id)

    assert (answer.cause, answer.ahead, answer.text) == (Cause.AHEAD, 2, "2 jobs of its queue come first")
    assert rig.ask(older).text == "1 job of its queue comes first"


def test_jobs_ahead_in_a_long_queue_are_estimated(rig: DiagnosisRig) -> None:
    rig.start_worker()
    *_, last = [rig.enqueue() for _ in range(MAX_COUNTED + 30)]

    answer = rig.ask(last)

    assert (answer.ahead, answer.text) == (MAX_COUNTED + 29, f"about {MAX_COUNTED + 29} jobs of its queue come first")


def test_a_job_without_jobs_ahead_is_next(rig: DiagnosisRig) -> None:
    rig.start_worker()

    answer = rig.ask(rig.enqueue())

    assert (answer.cause, answer.ahead) == (Cause.NEXT, 0)
    assert json.loads(json.dumps(answer.view()))["cause"] == "next"


def test_a_job_of_a_silent_worker_names_when_it_was_seen(rig: DiagnosisRig) -> None:
    rig.start_worker()
    job_id = rig.enqueue()
    rig.driver.reserve("default", token=new_token(), worker="w", lease=HOUR, limit=1, overdue_after=LEASE)
    assert "last seen" not in rig.ask(job_id).text

    rig.clock.advance(timedelta(minutes=5))

    found = rig.ask(job_id)
    assert found.cause is Cause.LEASED
    assert found.text.endswith(
        "; that worker was last seen at 2030-01-01T12:00:00Z: if it is dead, the job is reclaimed then"
    )


def test_jobs_of_unhandled_types_are_not_ahead(rig: DiagnosisRig) -> None:
    rig.start_worker()
    rig.enqueue(type="unknown")
    rig.enqueue()
    job_id = rig.enqueue()

    assert (rig.ask(job_id).cause, rig.ask(job_id).ahead) == (Cause.AHEAD, 1)


@pytest.mark.parametrize("busy", [0, 4])
def test_a_job_that_stays_next_while_slots_are_free_may_be_locked(rig: DiagnosisRig, busy: int) -> None:
    job_id = rig.enqueue()
    rig.start_worker(busy=busy)
    assert "'taskharbor doctor'" not in rig.ask(job_id).text

    rig.clock.advance(timedelta(seconds=45))
    rig.start_worker(busy=busy)

    found = rig.ask(job_id)
    assert (found.cause, found.ahead) == (Cause.NEXT, 0)
    assert ("due for 45 s although workers have free slots" in found.text) is (busy == 0)
