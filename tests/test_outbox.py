from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, ItemFailure, TransportRefused
from taskharbor.outbox import OutboxRelay, publish_to
from tests.support.delivery_rig import DeliveryRig
from tests.support.worker_rig import Outage, meddled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import DeadTaskEvent, OutboxRow


def _dead(rig: DeliveryRig) -> JobId:
    """Return a dead job whose event is not published."""

    def fail(_job: object) -> None:
        raise ValueError("no such address")

    job_id = rig.enqueue(max_attempts=1)
    worker = rig.worker({"run": fail}, dead_letter_queue=None)
    rig.enqueuer().tick()
    rig.run()
    worker.begin_stop(timedelta(0))
    rig.run()
    return job_id


def _event(rig: DeliveryRig, job_id: JobId) -> OutboxRow:
    [row] = rig.driver.inspector.outbox([job_id])
    return row


def _published(rig: DeliveryRig) -> list[dict[str, object]]:
    return [json.loads(copy.body) for copy in rig.service.queues.get(DEAD_EVENTS_QUEUE, [])]


def test_a_dead_letter_event_is_published_once_with_its_fields() -> None:
    rig = DeliveryRig()
    job_id = _dead(rig)
    relay = OutboxRelay(rig.driver, publish_to(rig.service))

    relay.tick()
    relay.tick()

    job = rig.job(job_id)
    assert job.dead_at is not None
    assert _published(rig) == [
        {
            "event_id": f"{job_id}:1",
            "job_id": str(job_id),
            "type": "run",
            "queue": "default",
            "worker_id": "w",
            "attempt_count": 1,
            "max_attempts": 1,
            "error": "ValueError: no such address",
            "dead_at": job.dead_at.isoformat(),
        }
    ]
    assert _event(rig, job_id).published_at is not None


def test_an_event_that_failed_is_retried_under_the_same_id() -> None:
    rig = DeliveryRig()
    job_id = _dead(rig)
    relay = OutboxRelay(rig.driver, publish_to(rig.service))
    rig.service.broken.add("send")
    pauses = []
    for _ in range(5):
        pauses.append(relay.tick())
        rig.run(pauses[-1].total_seconds())
    assert pauses == [timedelta(seconds=n) for n in (1, 2, 4, 8, 16)]
    assert "broken" in (_event(rig, job_id).last_error or "")

    rig.service.broken.clear()
    relay.tick()

    assert [event["event_id"] for event in _published(rig)] == [f"{job_id}:1"]


def test_an_event_that_always_fails_is_given_up_with_its_reason() -> None:
    rig = DeliveryRig()
    job_id = _dead(rig)

    def refuse(_events: Sequence[DeadTaskEvent]) -> Sequence[ItemFailure | None]:
        raise TransportRefused("queue not found", "create it")

    relay = OutboxRelay(rig.driver, refuse, most=3)
    for _ in range(5):
        rig.run(relay.tick().total_seconds())

    row = _event(rig, job_id)
    assert row.given_up_at is not None
    assert row.attempts == 3
    assert "queue not found" in (row.last_error or "")


def test_a_permanently_refused_event_is_given_up_and_others_are_published() -> None:
    rig = DeliveryRig()
    large, other = _dead(rig), _dead(rig)

    def publish(events: Sequence[DeadTaskEvent]) -> Sequence[ItemFailure | None]:
        too_long = ItemFailure("TooLong", "it is too long", is_permanent=True)
        return [too_long if event.job_id == large else None for event in events]

    OutboxRelay(rig.driver, publish).tick()

    assert _event(rig, large).given_up_at is not None
    assert _event(rig, other).published_at is not None


@pytest.mark.parametrize("verb", ["claim_outbox", "settle_outbox"])
def test_the_relay_retries_soon_after_an_unavailable_store(verb: str) -> None:
    rig = DeliveryRig()
    job_id = _dead(rig)
    outage = Outage(verb)
    relay = OutboxRelay(meddled(rig.driver, outage), publish_to(rig.service))
    outage.begin()
    assert relay.tick() == timedelta(seconds=1)
    outage.end()

    rig.run(60)
    relay.tick()

    assert {event["event_id"] for event in _published(rig)} == {f"{job_id}:1"}


def test_a_worker_publishes_the_event_of_its_dead_job_at_once() -> None:
    rig = DeliveryRig()

    def fail(_job: object) -> None:
        raise ValueError("no such address")

    rig.worker({"run": fail})
    rig.run(1)
    job_id = rig.enqueue(max_attempts=1)
    rig.enqueuer().tick()
    rig.run(1.5)

    assert [event["event_id"] for event in _published(rig)] == [f"{job_id}:1"]


def test_an_unavailable_dead_events_queue_does_not_delay_message_deletion() -> None:
    rig = DeliveryRig()
    rig.service.broken.add(f"send {DEAD_EVENTS_QUEUE}")
    job_id = _dead(rig)
    rig.worker({"run": lambda _job: None})
    rig.run()
    assert rig.left() == 0
    assert _event(rig, job_id).published_at is None

    rig.service.broken.clear()
    rig.run(30)

    assert _event(rig, job_id).published_at is not None
