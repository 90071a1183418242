"""Messages that name several jobs: each is deleted when all its jobs are settled or declined."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from taskharbor.core.hooks import MessageRejected
from taskharbor.core.messages import NamedJob, encode_message, parse_message
from taskharbor.core.states import Status
from taskharbor.worker import message_source
from tests.support.delivery_rig import FIRST, LEASE, VISIBILITY, DeliveryRig
from tests.support.worker_rig import Outage, meddled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver

V = VISIBILITY.total_seconds()


async def _nothing(_job: Job) -> None: ...


async def _short(_job: Job) -> None:
    await asyncio.sleep(0.02)


async def _long(_job: Job) -> None:
    await asyncio.sleep(3 * LEASE.total_seconds())


def _bundle(rig: DeliveryRig, count: int, **fields: Any) -> list[JobId]:
    """Enqueue jobs, and send one message that names all of them."""
    jobs = [rig.enqueue(**fields) for _ in range(count)]
    rig.enqueuer(batch=count, bundle=count).tick()
    return jobs


def _send(rig: DeliveryRig, jobs: Sequence[JobId]) -> None:
    rig.send_text(encode_message([NamedJob(job_id, rig.job(job_id).sends) for job_id in jobs]))


def _statuses(rig: DeliveryRig, jobs: Sequence[JobId]) -> list[Status]:
    return [rig.job(job_id).status for job_id in jobs]


def _watched(rig: DeliveryRig) -> tuple[Driver, list[int]]:
    """Return the driver, and the numbers of jobs in its claims."""
    sizes: list[int] = []

    def watch(verb: str, call: Callable[[], Any]) -> Any:
        answer = call()
        sizes.extend([len(answer)] if verb == "claim" else [])
        return answer

    return meddled(rig.driver, watch), sizes


def test_a_hundred_jobs_take_one_call_to_send_to_receive_and_to_delete() -> None:
    rig = DeliveryRig()
    jobs = [rig.enqueue() for _ in range(200)]
    enqueuer = rig.enqueuer(batch=100, bundle=10)
    enqueuer.tick()
    enqueuer.tick()
    assert (rig.service.calls, rig.left()) == ({"send": 2}, 20)
    driver, claims = _watched(rig)

    rig.worker({"run": _nothing}, driver, concurrency=200)
    rig.run(0.5)

    assert _statuses(rig, jobs) == [Status.SUCCEEDED] * 200
    assert claims == [100, 100]
    assert rig.service.calls["receive"] <= 2 + 2  # and two that found nothing
    assert rig.service.calls["delete"] == 2
    assert "change_visibility" not in rig.service.calls
    assert rig.left() == 0


def test_a_message_is_deleted_when_the_last_of_its_jobs_is_settled() -> None:
    rig = DeliveryRig()
    slow, *others = _bundle(rig, 5)

    async def run(job: Job) -> None:
        await (_long if job.id == slow else _nothing)(job)

    rig.worker({"run": run})
    rig.run(2.5 * LEASE.total_seconds())
    assert _statuses(rig, others) == [Status.SUCCEEDED] * 4
    [message] = rig.service.queues["default"]
    assert message.receive_count == 1  # hidden for as long as one of its jobs runs

    rig.run(LEASE.total_seconds())
    assert rig.job(slow).status is Status.SUCCEEDED
    assert rig.left() == 0


def test_jobs_without_a_slot_are_claimed_as_soon_as_others_end() -> None:
    rig = DeliveryRig()
    jobs = _bundle(rig, 10)
    driver, claims = _watched(rig)

    rig.worker({"run": _short}, driver, concurrency=4)
    rig.run(1)

    assert _statuses(rig, jobs) == [Status.SUCCEEDED] * 10
    assert {rig.job(job_id).sends for job_id in jobs} == {1}
    assert (sum(claims), max(claims), rig.left()) == (10, 4, 0)


def test_jobs_that_find_no_slot_in_time_are_declined_and_run_by_an_idle_worker() -> None:
    rig = DeliveryRig()
    jobs = _bundle(rig, 10)
    rig.worker({"run": _long}, concurrency=4, name="busy")
    rig.run(0.05)
    idle = rig.worker({"run": _long}, concurrency=16, name="idle")
    enqueuer = rig.enqueuer()
    rig.run(0.2)
    assert (enqueuer.tick(), rig.left()) == (timedelta(seconds=1), 7)  # one for each declined job

    rig.run(1)

    assert _statuses(rig, jobs) == [Status.PROCESSING] * 10
    assert [rig.job(job_id).sends for job_id in jobs] == [1] * 4 + [2] * 6
    assert idle.running_jobs == 6
    rig.run(4 * LEASE.total_seconds())
    assert _statuses(rig, jobs) == [Status.SUCCEEDED] * 10
    assert {rig.job(job_id).attempt_count for job_id in jobs} == {1}
    assert rig.left() == 0


def test_messages_beyond_the_free_slots_are_released_at_once() -> None:
    rig = DeliveryRig()
    jobs = [rig.enqueue() for _ in range(16)]
    rig.enqueuer(batch=16, bundle=4).tick()
    rig.worker({"run": _long}, concurrency=4, name="small")
    rig.run(0.05)

    rig.worker({"run": _long}, concurrency=12, name="large")
    rig.run(1)

    assert _statuses(rig, jobs) == [Status.PROCESSING] * 16
    assert {rig.job(job_id).sends for job_id in jobs} == {1}


def test_a_redelivered_message_runs_only_what_is_not_finished() -> None:
    rig = DeliveryRig()
    finished = _bundle(rig, 3)
    rig.worker({"run": _nothing}, name="first")
    rig.run(1)
    waiting = [rig.enqueue() for _ in range(2)]
    rig.enqueuer().tick()
    rig.service.queues["default"].clear()

    _send(rig, [*finished, *waiting])
    rig.run(1)

    assert _statuses(rig, [*finished, *waiting]) == [Status.SUCCEEDED] * 5
    assert {rig.job(job_id).attempt_count for job_id in [*finished, *waiting]} == {1}
    assert rig.left() == 0


def test_a_message_that_could_not_be_deleted_starts_no_job_again() -> None:
    rig = DeliveryRig()
    jobs = _bundle(rig, 5)
    rig.service.broken.add("delete")
    rig.worker({"run": _nothing})
    rig.run(1)
    assert (_statuses(rig, jobs), rig.left()) == ([Status.SUCCEEDED] * 5, 1)

    rig.service.broken.clear()
    rig.run(2 * V)

    assert {rig.job(job_id).attempt_count for job_id in jobs} == {1}
    assert rig.left() == 0


def test_a_message_is_left_while_one_of_its_jobs_is_leased_elsewhere() -> None:
    rig = DeliveryRig()
    [leased] = _bundle(rig, 1)
    rig.worker({"run": _long}, name="first", concurrency=1)
    rig.run(0.5)
    free = [rig.enqueue() for _ in range(2)]
    rig.enqueuer().tick()
    rig.service.queues["default"] = rig.service.queues["default"][:1]  # of the leased job

    _send(rig, [leased, *free])
    rig.worker({"run": _nothing}, name="second")
    rig.run(1)
    assert _statuses(rig, free) == [Status.SUCCEEDED] * 2
    assert rig.left() == 2

    rig.run(4 * LEASE.total_seconds())
    assert rig.job(leased).attempt_count == 1
    assert rig.left() == 0


def test_a_job_without_a_handler_does_not_wait_for_the_others_of_its_message() -> None:
    rig = DeliveryRig()
    rare, common = rig.enqueue(type="rare"), rig.enqueue()
    rig.enqueuer(batch=2, bundle=2).tick()
    rig.worker({"run": _long}, name="first", unknown_types="leave")
    rig.run(0.5)

    rig.worker({"rare": _nothing, "run": _nothing}, name="second")
    rig.run(3)

    assert rig.job(rare).status is Status.SUCCEEDED
    assert rig.job(common).status is Status.PROCESSING
    rig.run(5 * LEASE.total_seconds())
    assert (rig.job(common).attempt_count, rig.left()) == (1, 0)


def test_a_job_of_another_queue_is_reported_and_the_others_run() -> None:
    rig = DeliveryRig()
    foreign = rig.enqueue(queue="payments")
    rig.enqueuer(queues=["payments"]).tick()
    own = rig.enqueue()
    rig.enqueuer().tick()
    rig.service.queues["default"].clear()
    events: list[Any] = []

    _send(rig, [foreign, own])
    rig.worker({"run": _nothing}, hooks=[events.append])
    rig.run(1)

    assert [event.job_id for event in events if isinstance(event, MessageRejected)] == [foreign]
    assert _statuses(rig, [foreign, own]) == [Status.ENQUEUED, Status.SUCCEEDED]
    assert rig.left() == 0


def test_jobs_whose_decline_was_not_recorded_come_again_with_their_message() -> None:
    rig = DeliveryRig()
    outage = Outage("record_dispatch")
    jobs = _bundle(rig, 4)
    outage.begin()
    rig.worker({"run": _long}, meddled(rig.driver, outage), concurrency=2)
    rig.run(1)
    assert (outage.refused, rig.left()) == (["record_dispatch"], 1)
    assert _statuses(rig, jobs).count(Status.PROCESSING) == 2

    outage.end()
    rig.worker({"run": _nothing}, name="second")
    rig.run(2 * V)
    assert _statuses(rig, jobs) == [Status.PROCESSING] * 2 + [Status.SUCCEEDED] * 2

    rig.run(3 * V)
    assert _statuses(rig, jobs) == [Status.SUCCEEDED] * 4
    assert rig.left() == 0


def test_a_claim_in_part_whose_reply_was_lost_runs_every_job_once() -> None:
    rig = DeliveryRig()
    outage = Outage("claim", commits=True)
    outage.begin()
    jobs = _bundle(rig, 5)
    rig.worker({"run": _short}, meddled(rig.driver, outage), concurrency=3)
    rig.run(0.05)
    outage.end()
    rig.run(2 * V)

    assert "claim" in outage.refused
    assert _statuses(rig, jobs) == [Status.SUCCEEDED] * 5
    assert {rig.job(job_id).attempt_count for job_id in jobs} == {1}
    assert rig.left() == 0


def test_a_stopping_worker_declines_the_jobs_that_it_holds() -> None:
    rig = DeliveryRig()
    jobs = _bundle(rig, 6)
    worker = rig.worker({"run": _long}, concurrency=2, grace=timedelta(0), name="first")
    rig.run(0.02)
    worker.begin_stop()
    rig.run(3)

    assert _statuses(rig, jobs) == [Status.ENQUEUED] * 6
    assert rig.left() == 0
    rig.enqueuer().tick()
    rig.worker({"run": _nothing}, name="second")
    rig.run(1)
    assert _statuses(rig, jobs) == [Status.SUCCEEDED] * 6


def test_a_worker_that_does_not_know_bundles_gets_their_jobs_later_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_source, "parse_message", lambda text: parse_message(text) if '"v":1' in text else None)
    rig = DeliveryRig()
    jobs = _bundle(rig, 5)
    rig.worker({"run": _nothing}, overdue_after=10 * FIRST)
    rig.run(1)
    assert (_statuses(rig, jobs), rig.left()) == ([Status.ENQUEUED] * 5, 0)

    rig.run(FIRST.total_seconds())
    rig.enqueuer(batch=5, bundle=5).tick()
    rig.run(1)

    assert _statuses(rig, jobs) == [Status.SUCCEEDED] * 5


def test_a_busy_worker_receives_more_messages_than_it_has_slots_while_it_is_quick() -> None:
    rig = DeliveryRig()
    for _ in range(2_000):
        rig.enqueue()
    enqueuer = rig.enqueuer(bundle=10, max_unclaimed=10_000)
    for _ in range(4):
        enqueuer.tick()

    rig.worker({"run": _short}, concurrency=16)
    rig.run(4)

    assert rig.left() == 0  # of 200 messages, each of which would fill most slots
    assert rig.service.calls["receive"] < 100
    assert rig.service.calls["delete"] < 100
    assert rig.service.calls.get("change_visibility", 0) < 10
