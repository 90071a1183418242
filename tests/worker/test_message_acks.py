"""Decisions on messages survive errors, and messages of other queues claim nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taskharbor.core.hooks import MessageRejected
from taskharbor.core.states import Status
from taskharbor.testing.simulation.queue_service import QueueService
from tests.support.delivery_rig import VISIBILITY, DeliveryRig
from tests.support.worker_rig import Outage, meddled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.delivery.transport import ItemFailure

V = VISIBILITY.total_seconds()


def _nothing(_job: Job) -> None: ...


@dataclass
class FailingDeletes(QueueService):
    """A queue service whose next *errors* deletes raise an error that is not a transport error."""

    errors: int = 0
    requested: list[str] = field(default_factory=list)

    def delete(self, queue: str, receipts: Sequence[str]) -> list[ItemFailure | None]:
        self.requested += receipts
        if self.errors:
            self.errors -= 1
            raise RuntimeError("a bug in the transport")
        return super().delete(queue, receipts)


def _rig_with_failing_deletes(errors: int) -> tuple[DeliveryRig, FailingDeletes]:
    rig = DeliveryRig()
    rig.service = service = FailingDeletes(lambda: rig.world.now, errors=errors)
    return rig, service


def _paused(rig: DeliveryRig, count: int) -> list[JobId]:
    """Send messages of jobs whose queue is then paused: each must be declined."""
    job_ids = [rig.enqueue() for _ in range(count)]
    rig.enqueuer().tick()
    rig.driver.control.pause(["default"], by="ops")
    return job_ids


def test_messages_are_declined_again_after_an_error_of_the_store() -> None:
    rig = DeliveryRig()
    _paused(rig, 3)
    errors = [RuntimeError("a bug in the driver")]

    def fail_once(verb: str, call: Callable[[], Any]) -> Any:
        if verb == "record_dispatch" and errors:
            raise errors.pop()
        return call()

    rig.worker({"run": _nothing}, meddled(rig.driver, fail_once))
    rig.run(V / 2)  # before they are delivered again

    assert (rig.left(), errors) == (0, [])
    assert [str(error) for error in rig.failed] == ["a bug in the driver"]


def test_messages_that_cannot_be_declined_are_left_and_come_again() -> None:
    rig = DeliveryRig()
    outage = Outage("record_dispatch")
    _paused(rig, 3)
    outage.begin()
    rig.worker({"run": _nothing}, meddled(rig.driver, outage))
    rig.run(V / 2)
    assert (rig.left(), set(outage.refused)) == (3, {"record_dispatch"})

    outage.end()
    rig.run(V)

    assert (rig.left(), rig.failed) == (0, [])


def test_messages_are_deleted_again_after_an_error_of_the_transport() -> None:
    rig, service = _rig_with_failing_deletes(errors=1)
    job_ids = [rig.enqueue() for _ in range(3)]
    rig.enqueuer().tick()

    rig.worker({"run": _nothing})
    rig.run(V / 2)

    assert {rig.job(job_id).status for job_id in job_ids} == {Status.SUCCEEDED}
    assert (rig.left(), service.errors) == (0, 0)
    assert [str(error) for error in rig.failed] == ["a bug in the transport"]


def test_one_message_that_always_fails_does_not_hold_up_the_others() -> None:
    rig = DeliveryRig()
    poison, *others = _paused(rig, 6)

    def fail_on_poison(verb: str, call: Callable[[], Any]) -> Any:
        answer = call()
        if verb == "record_dispatch" and rig.job(poison).dispatch_at == rig.driver.inspector.now():
            raise RuntimeError("a bug in the driver")
        return answer

    rig.worker({"run": _nothing}, meddled(rig.driver, fail_on_poison), concurrency=6)
    rig.run(V - 1)

    assert rig.left() == 1
    assert len(others) == 5


def test_decisions_that_always_fail_do_not_pile_up() -> None:
    rig, service = _rig_with_failing_deletes(errors=10**9)
    job_id = rig.enqueue()
    rig.enqueuer().tick()

    rig.worker({"run": _nothing})
    rig.run(20 * V)

    assert rig.job(job_id).attempt_count == 1
    assert len(set(service.requested)) >= 20  # one for each delivery
    assert len(set(service.requested[-10:])) <= 3  # older ones are no longer retried


def test_a_message_of_another_queue_claims_nothing_and_is_deleted(caplog: pytest.LogCaptureFixture) -> None:
    rig = DeliveryRig()
    job_id = rig.enqueue(type="charge", queue="payments")
    rig.enqueuer(queues=["payments"]).tick()
    before = rig.job(job_id)
    events: list[Any] = []
    rig.send_message(job_id, queue="mail")

    with caplog.at_level(logging.WARNING, logger="taskharbor"):
        rig.worker({"run": _nothing}, queues=["mail"], hooks=[events.append])
        rig.run()

    assert rig.job(job_id) == before
    assert (rig.left("mail"), rig.left("payments")) == (0, 1)
    assert [(event.queue, event.job_id) for event in events if isinstance(event, MessageRejected)] == [("mail", job_id)]
    [line] = [record.getMessage() for record in caplog.records if "another queue" in record.getMessage()]
    assert f"of queue mail: job {job_id} belongs to another queue" in line


def test_a_forged_seq_that_no_store_can_hold_is_deleted_unread() -> None:
    rig = DeliveryRig()
    job_id = rig.enqueue()
    rig.enqueuer().tick()
    rig.driver.control.pause(["default"], by="ops")
    rig.send_message(job_id, seq=2**31)
    declined: list[str] = []

    def watch(verb: str, call: Callable[[], Any]) -> Any:
        declined.extend([verb] if verb == "record_dispatch" else [])
        return call()

    rig.service.queues["default"] = rig.service.queues["default"][1:]  # only the forged one
    rig.worker({"run": _nothing}, meddled(rig.driver, watch))
    rig.run(1)

    assert (rig.left(), declined) == (0, [])
