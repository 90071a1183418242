"""Whether messages of queues are sent and received, by what enqueuers and workers have recorded about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.core.messages import DeliveryRole
from taskharbor.core.states import Status
from taskharbor.core.text import duration_text
from taskharbor.diagnosis import WORKER_ALIVE_WITHIN
from taskharbor.doctor.findings import Level

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.messages import DeliveryNote
    from taskharbor.core.results import QueueStats
    from taskharbor.doctor.findings import Problem
    from taskharbor.drivers.base import Inspector


def check_delivery(
    inspector: Inspector, queues: Sequence[QueueStats], *, now: datetime, overdue_after: timedelta
) -> Iterator[Problem]:
    """Report queues whose messages cannot be sent or received, or whose enqueuer or receivers are gone."""
    for queue in queues:
        notes = inspector.delivery(queue.name)
        alive = {each.role: each for each in notes if each.seen_at and each.seen_at > now - WORKER_ALIVE_WITHIN}
        yield from _failing(queue.name, alive)
        if queue.oldest_due is not None and queue.oldest_due <= now - overdue_after and queue.paused_at is None:
            for_ = duration_text((now - queue.oldest_due).total_seconds())
            yield from _one_sided(queue, alive, f"the oldest job has been due for {for_}")


def _failing(queue: str, alive: Mapping[DeliveryRole, DeliveryNote]) -> Iterator[Problem]:
    for role, done in ((DeliveryRole.SENDER, "sent"), (DeliveryRole.RECEIVER, "received")):
        if role in alive and alive[role].problem:
            yield (
                Level.WARN,
                f"messages of queue {queue!r} cannot be {done}: {alive[role].problem}",
                "run: taskharbor doctor --sqs; meanwhile workers claim overdue jobs from the store",
            )


def _one_sided(queue: QueueStats, alive: Mapping[DeliveryRole, DeliveryNote], waits: str) -> Iterator[Problem]:
    if DeliveryRole.RECEIVER in alive and DeliveryRole.SENDER not in alive:
        yield (
            Level.WARN,
            f"workers receive messages of queue {queue.name!r}, but no enqueuer sends any; {waits}",
            f"start one: taskharbor enqueuer -q {queue.name}",
        )
    if DeliveryRole.SENDER in alive and DeliveryRole.RECEIVER not in alive and queue.counts.get(Status.ENQUEUED):
        yield (
            Level.WARN,
            f"an enqueuer sends messages of queue {queue.name!r}, but no worker receives any; {waits}",
            f"start workers with --sqs, or stop the enqueuer: taskharbor worker --sqs -q {queue.name}",
        )
