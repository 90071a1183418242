"""What a worker does with messages, for each row of the table in the design."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import Worker
from taskharbor.core.ids import JobId, new_job_id, new_token
from taskharbor.core.messages import MAX_UNKNOWN_RECEIVES, DeliveryRole, NamedJob, encode_message
from taskharbor.core.model import Claim
from taskharbor.core.outcome import Cancel, DeadLetter, Snooze
from taskharbor.core.results import Sent
from taskharbor.core.states import Status
from tests.support.delivery_rig import FIRST, LEASE, VISIBILITY, DeliveryRig
from tests.support.worker_rig import Outage, meddled

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.core.model import Job

DAY = timedelta(days=1)
V = VISIBILITY.total_seconds()


def _nothing(_job: Job) -> None: ...


async def _long(_job: Job) -> None:
    await asyncio.sleep(3 * LEASE.total_seconds())


def _raise(error: Exception) -> Callable[[Job], None]:
    def run(_job: Job) -> None:
        raise error

    return run


def _sent(rig: DeliveryRig, **fields: Any) -> JobId:
    """Enqueue a job, and send its message."""
    job_id = rig.enqueue(**fields)
    rig.enqueuer().tick()
    return job_id


def test_a_job_is_run_by_its_message_which_is_then_deleted() -> None:
    rig = DeliveryRig()
    job_id = _sent(rig)

    rig.worker({"run": _nothing})
    rig.run()

    assert rig.job(job_id).status is Status.SUCCEEDED
    assert rig.left() == 0
    assert rig.failed == []


def test_the_store_knows_which_queues_have_a_receiver_and_why_receiving_fails() -> None:
    rig = DeliveryRig()
    rig.service.broken.add("receive")
    rig.worker({"run": _nothing})
    rig.run(15)
    [broken] = rig.driver.inspector.delivery("default")
    rig.service.broken.clear()
    rig.run(60)
    [works] = rig.driver.inspector.delivery("default")

    assert (broken.role, works.role) == (DeliveryRole.RECEIVER, DeliveryRole.RECEIVER)
    assert (bool(broken.problem), bool(works.problem)) == (True, False)
    assert works.seen_at is not None
    assert works.seen_at > rig.world.store_time() - timedelta(seconds=15)


def test_a_worker_without_messages_records_no_receiver() -> None:
    rig = DeliveryRig()
    worker = Worker(rig.driver, runtime=rig.runtime("w"))
    worker.register("run", _nothing)
    worker.start()
    rig.run(15)

    assert len(rig.driver.inspector.workers()) == 1
    assert rig.driver.inspector.delivery("default") == []


def test_a_handler_begins_after_the_store_has_its_job_as_processing() -> None:
    rig = DeliveryRig()
    seen: list[tuple[Status, int]] = []
    _sent(rig)

    rig.worker({"run": lambda job: seen.append((rig.job(job.id).status, rig.job(job.id).attempt_count))})
    rig.run()

    assert seen == [(Status.PROCESSING, 1)]


@pytest.mark.parametrize(
    ("handler", "status"),
    [
        (_nothing, Status.SUCCEEDED),
        (_raise(ValueError("again")), Status.ENQUEUED),
        (_raise(Snooze(after=DAY)), Status.ENQUEUED),
        (_raise(Cancel("no longer wanted")), Status.CANCELED),
        (_raise(DeadLetter("hopeless")), Status.DEAD),
    ],
    ids=["success", "retry", "snooze", "cancel", "death"],
)
def test_the_message_is_deleted_whatever_outcome_was_recorded(handler: Callable[[Job], None], status: Status) -> None:
    rig = DeliveryRig()
    job_id = _sent(rig)

    rig.worker({"run": handler})
    rig.run(0.5)

    assert rig.job(job_id).status is status
    assert rig.left() == 0


def test_a_failed_job_whose_sending_was_not_noted_still_waits_for_a_message() -> None:
    rig = DeliveryRig()
    outage = Outage("record_dispatch")
    outage.begin()
    job_id = rig.enqueue()
    rig.enqueuer(meddled(rig.driver, outage)).tick()
    assert (outage.refused, rig.left(), rig.job(job_id).sent_at) == (["record_dispatch"], 1, None)

    rig.worker({"run": _raise(ValueError("again"))})
    rig.run(0.5)

    assert (rig.job(job_id).status, rig.job(job_id).attempt_count) == (Status.ENQUEUED, 1)


def test_messages_go_in_tens_and_their_jobs_are_claimed_together() -> None:
    rig = DeliveryRig()
    for _ in range(40):
        rig.enqueue()
    rig.enqueuer().tick()
    claims: list[int] = []

    def watch(verb: str, call: Callable[[], Any]) -> Any:
        answer = call()
        claims.extend([len(answer)] if verb == "claim" else [])
        return answer

    rig.worker({"run": _nothing}, meddled(rig.driver, watch), concurrency=40)
    rig.run()

    assert claims == [10, 10, 10, 10]
    assert rig.service.calls["delete"] <= 8
    assert rig.left() == 0


def test_a_message_that_cannot_be_read_is_deleted() -> None:
    rig = DeliveryRig()
    rig.send_text("hello")

    rig.worker({"run": _nothing})
    rig.run()

    assert rig.left() == 0


def test_a_message_is_left_while_the_outcome_of_its_job_is_not_recorded() -> None:
    rig = DeliveryRig()
    outage = Outage("settle")
    job_id = _sent(rig)
    rig.worker({"run": _nothing}, meddled(rig.driver, outage))
    outage.begin()
    rig.run(2)
    assert rig.left() == 1

    outage.end()
    rig.run()

    assert rig.job(job_id).status is Status.SUCCEEDED
    assert rig.left() == 0


def test_a_claim_whose_reply_was_lost_is_read_back_and_run() -> None:
    rig = DeliveryRig()
    outage = Outage("claim", commits=True)
    outage.begin()
    job_id = _sent(rig)
    rig.worker({"run": _nothing}, meddled(rig.driver, outage))
    rig.run()

    assert outage.refused == ["claim"]
    assert (rig.job(job_id).status, rig.job(job_id).attempt_count) == (Status.SUCCEEDED, 1)
    assert rig.left() == 0


def test_a_claim_that_did_not_arrive_is_made_again_as_soon_as_the_store_answers() -> None:
    rig = DeliveryRig()
    outage = Outage()
    job_id = _sent(rig)
    rig.worker({"run": _nothing}, meddled(rig.driver, outage))
    outage.begin()
    rig.run(3)
    assert rig.job(job_id).status is Status.ENQUEUED

    outage.end()
    rig.run(V / 3)

    assert rig.job(job_id).status is Status.SUCCEEDED


def test_while_the_store_is_out_of_reach_no_messages_are_taken() -> None:
    rig = DeliveryRig()
    outage = Outage()
    for _ in range(30):
        _sent(rig)
    rig.worker({"run": _nothing}, meddled(rig.driver, outage))
    outage.begin()  # after the start, at which the codec is checked

    rig.run(60)

    assert rig.service.calls["receive"] == 1


def test_a_message_of_a_finished_job_is_deleted() -> None:
    rig = DeliveryRig()
    job_id = _sent(rig)
    rig.worker({"run": _nothing})
    rig.run()

    rig.send_message(job_id)
    rig.send_message(job_id, seq=0)
    rig.run()

    assert rig.left() == 0
    assert rig.job(job_id).attempt_count == 1


def _leased_by_another(rig: DeliveryRig, job_id: JobId) -> None:
    [claim] = rig.driver.claim([job_id], queue="default", token=new_token(), worker="other", lease=DAY)
    assert isinstance(claim, Claim)


@pytest.mark.parametrize(
    "change",
    [
        lambda rig, job_id: rig.driver.cancel([job_id]),
        lambda rig, job_id: rig.driver.reschedule([job_id], delay=DAY),
        lambda rig, _: rig.driver.control.pause(["default"], by="ana"),
        _leased_by_another,
    ],
    ids=["canceled", "not due", "paused", "leased"],
)
def test_a_job_whose_claim_is_refused_is_not_run(change: Callable[[DeliveryRig, JobId], object]) -> None:
    rig = DeliveryRig()
    ran: list[JobId] = []
    job_id = _sent(rig)
    change(rig, job_id)
    before = rig.job(job_id)

    rig.worker({"run": lambda job: ran.append(job.id)})
    rig.run()

    assert rig.service.calls.get("receive", 0) > 0
    assert ran == []
    assert rig.job(job_id).attempt_count == before.attempt_count


def test_a_message_of_a_job_that_is_due_much_later_is_declined() -> None:
    rig = DeliveryRig()
    job_id = _sent(rig)
    rig.driver.reschedule([job_id], delay=DAY)

    rig.worker({"run": _nothing})
    rig.run()

    assert rig.left() == 0
    assert (rig.job(job_id).status, rig.job(job_id).attempt_count) == (Status.ENQUEUED, 0)


def test_a_message_of_a_paused_queue_is_declined_and_resent_after_resume() -> None:
    rig = DeliveryRig()
    job_id = _sent(rig)
    rig.driver.control.pause(["default"], by="ops")
    rig.worker({"run": _nothing})
    rig.run()
    assert rig.left() == 0

    rig.driver.control.resume(["default"])
    rig.enqueuer().tick()
    rig.run()

    assert rig.job(job_id).status is Status.SUCCEEDED


def test_a_message_of_a_job_that_is_due_soon_waits_for_it() -> None:
    rig = DeliveryRig()
    job_id = _sent(rig)
    rig.driver.reschedule([job_id], delay=timedelta(seconds=V - 1))

    rig.worker({"run": _nothing}, overdue_after=DAY)
    rig.run(V - 2)
    assert (rig.left(), rig.job(job_id).attempt_count) == (1, 0)
    rig.run(3)

    assert rig.job(job_id).status is Status.SUCCEEDED
    assert rig.left() == 0


def test_a_message_of_a_job_that_another_worker_runs_is_left_for_as_long() -> None:
    rig = DeliveryRig()
    job_id = _sent(rig)
    rig.worker({"run": _long})
    rig.run(1)
    rig.worker({"run": _nothing}, name="other")
    rig.run(1)

    rig.send_message(job_id)
    rig.run(3)
    assert [copy.receive_count for copy in rig.service.queues["default"]] == [1, 1]
    rig.run(4 * V)

    assert rig.left() == 0
    assert (rig.job(job_id).status, rig.job(job_id).attempt_count) == (Status.SUCCEEDED, 1)


def test_a_message_of_a_type_without_a_handler_is_left_for_others() -> None:
    rig = DeliveryRig()
    job_id = _sent(rig, type="unheard.of")
    worker = rig.worker({"run": _nothing}, unknown_types="leave")
    rig.run()
    assert (rig.left(), rig.job(job_id).status) == (1, Status.ENQUEUED)
    worker.begin_stop()
    rig.run()

    rig.worker({"unheard.of": _nothing}, name="other")
    rig.run(2 * V)

    assert rig.job(job_id).status is Status.SUCCEEDED


def test_a_message_of_an_unknown_job_is_deleted_when_it_was_seen_a_few_times() -> None:
    rig = DeliveryRig()
    rig.send_text(encode_message([NamedJob(JobId(new_job_id()), 1)]))
    rig.worker({"run": _nothing})

    rig.run(MAX_UNKNOWN_RECEIVES * V - 1)
    assert rig.left() == 1
    rig.run(V)

    assert rig.left() == 0


def test_a_message_that_comes_twice_in_one_batch_runs_its_job_once() -> None:
    rig = DeliveryRig()
    ran: list[JobId] = []
    job_id = _sent(rig)
    rig.send_message(job_id)

    rig.worker({"run": lambda job: ran.append(job.id)})
    rig.run(2 * V)

    assert ran == [job_id]
    assert rig.left() == 0


def test_a_forged_message_of_another_queue_keeps_no_slot() -> None:
    rig = DeliveryRig()
    other = rig.enqueue(queue="other")
    rig.enqueuer(queues=["other"]).tick()
    rig.send_message(other)
    rig.worker({"run": _nothing}, concurrency=1)
    rig.run()

    job_id = _sent(rig)
    rig.run()

    assert (rig.job(other).status, rig.job(job_id).status) == (Status.ENQUEUED, Status.SUCCEEDED)


@pytest.mark.parametrize("verb", ["delete", "change_visibility"])
def test_a_message_that_cannot_be_deleted_or_hidden_never_touches_its_job(verb: str) -> None:
    rig = DeliveryRig()
    rig.service.broken.add(verb)
    job_id = _sent(rig)
    rig.worker({"run": _long})
    rig.run(3 * LEASE.total_seconds() + 1)
    assert (rig.job(job_id).status, rig.job(job_id).attempt_count) == (Status.SUCCEEDED, 1)

    rig.service.broken.clear()
    rig.run(2 * V)

    assert rig.left() == 0
    assert rig.failed == []


def test_a_message_stays_hidden_for_as_long_as_its_job_runs() -> None:
    rig = DeliveryRig()
    job_id = _sent(rig)
    rig.worker({"run": _long})
    rig.run(2 * V)

    assert rig.job(job_id).status is Status.PROCESSING
    assert [copy.receive_count for copy in rig.service.queues["default"]] == [1]


def test_messages_received_by_a_stopping_worker_become_visible_immediately() -> None:
    rig = DeliveryRig()
    service = rig.service
    job_id = _sent(rig)

    class Late:
        """Delivers messages just when the worker is asked to stop."""

        def __getattr__(self, name: str) -> Any:
            return getattr(service, name)

        def receive(self, *args: Any, **named: Any) -> Any:
            worker.begin_stop()
            return service.receive(*args, **named)

    rig.service = Late()  # type: ignore[assignment]
    worker = rig.worker({"run": _nothing})
    rig.run(1)

    [copy] = service.queues["default"]
    assert (copy.receive_count, rig.job(job_id).status) == (1, Status.ENQUEUED)
    assert copy.visible_at < rig.world.now
    assert worker.is_over


def test_a_job_of_a_stopping_worker_is_released_and_its_message_resent() -> None:
    rig = DeliveryRig()
    job_id = _sent(rig)
    worker = rig.worker({"run": _long})
    rig.run(1)
    worker.begin_stop(timedelta(0))
    rig.run(3)
    assert (rig.job(job_id).status, rig.job(job_id).attempt_count, rig.left()) == (Status.ENQUEUED, 0, 0)

    rig.enqueuer().tick()

    assert rig.left() == 1


def test_any_number_of_stopping_workers_leaves_one_message_for_their_job() -> None:
    rig = DeliveryRig()
    job_id = _sent(rig)
    left = []

    for _ in range(15):  # more than the free releases of a job
        worker = rig.worker({"run": _long})
        rig.run(1)
        worker.begin_stop(timedelta(0))
        rig.run(3)
        rig.enqueuer().tick()
        left.append(rig.left())
    rig.worker({"run": _nothing})
    rig.run(1)

    assert left == [1] * 15
    assert (rig.job(job_id).status, rig.left()) == (Status.SUCCEEDED, 0)


def test_while_messages_cannot_be_received_jobs_are_taken_from_the_store(caplog: pytest.LogCaptureFixture) -> None:
    rig = DeliveryRig()
    rig.service.broken.add("receive")
    rig.worker({"run": _nothing})
    jobs = [_sent(rig) for _ in range(3)]
    with caplog.at_level(logging.WARNING):
        rig.run(FIRST.total_seconds())
        assert {rig.job(job_id).status for job_id in jobs} == {Status.ENQUEUED}
        rig.run(2)
        assert {rig.job(job_id).status for job_id in jobs} == {Status.SUCCEEDED}
        rig.service.broken.clear()
        job_id = _sent(rig)
        rig.run(40)

    assert rig.job(job_id).status is Status.SUCCEEDED
    first, *_, last = caplog.messages
    assert first == "queue service unavailable; polling the store: receive is broken"
    assert last.startswith("queue service available again after ")


def test_a_job_whose_message_was_lost_is_taken_without_it() -> None:
    rig = DeliveryRig()
    job_id = rig.enqueue()
    [dispatch] = rig.driver.dispatch("default", limit=1, lock=timedelta(seconds=1), unclaimed=10)
    rig.driver.record_dispatch([Sent(dispatch, DAY)])

    rig.worker({"run": _nothing})
    rig.run(FIRST.total_seconds() + 2)

    assert rig.job(job_id).status is Status.SUCCEEDED


def test_without_an_enqueuer_overdue_jobs_are_claimed_from_the_store() -> None:
    rig = DeliveryRig()
    jobs = [rig.enqueue() for _ in range(30)]

    rig.worker({"run": _nothing}, concurrency=2)
    rig.run(FIRST.total_seconds() - 1)
    assert {rig.job(job_id).status for job_id in jobs} == {Status.PENDING}
    rig.run(6)

    assert {rig.job(job_id).status for job_id in jobs} == {Status.SUCCEEDED}


def test_a_busy_queue_does_not_starve_another_of_its_messages() -> None:
    rig = DeliveryRig()
    ran: list[str] = []
    for queue in ["busy"] * 30 + ["quiet"] * 3:
        rig.enqueue(queue=queue)
    rig.enqueuer(queues=["busy", "quiet"]).tick()

    rig.worker({"run": lambda job: ran.append(job.queue)}, queues=["busy", "quiet"], concurrency=1)
    rig.run(20)

    assert "quiet" in ran[:4]
    assert len(ran) == 33


def test_a_queue_moves_from_polling_to_messages_and_back_and_no_job_is_stranded() -> None:
    rig = DeliveryRig()
    jobs: list[JobId] = []

    def work(seconds: float, **options: Any) -> None:
        jobs.extend(rig.enqueue(max_attempts=9) for _ in range(6))
        worker = rig.worker({"run": _half}, **options)
        rig.run(seconds)
        worker.begin_stop()
        rig.run(4)

    def _half(job: Job) -> None:
        if job.attempt_count % 2:
            raise ValueError("not yet")

    enqueuer = rig.enqueuer()
    service = rig.service
    rig.service = None  # type: ignore[assignment]
    work(1)
    rig.service = service
    enqueuer.tick()
    work(1)
    enqueuer.tick()
    rig.service = None  # type: ignore[assignment]
    work(900)

    assert {rig.job(job_id).status for job_id in jobs} == {Status.SUCCEEDED}
