"""Checks of the queues in SQS."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.text import duration_text
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE, TransportRefused, TransportUnavailable
from taskharbor.doctor.findings import Finding, Level, NotChecked, run_check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskharbor.delivery.sqs import SqsTransport
    from taskharbor.delivery.transport import QueueSpec
    from taskharbor.doctor.findings import Problem
    from taskharbor.drivers.base import Inspector

SETUP: Final = "taskharbor sqs setup"
MAX_AGE: Final = timedelta(minutes=5)
"""How long a message may wait for a worker."""
SAMPLE: Final = 200
"""The number of jobs at the head of a queue whose messages are examined."""


def check_queues(
    transport: SqsTransport, specs: Sequence[QueueSpec], *, inspector: Inspector | None = None
) -> Iterator[Finding]:
    """Check access, existence and attributes of the queues, unreadable messages, and by the store the oldest ones."""
    yield from run_check(
        "sqs queues", f"{len(specs)} queues exist with the right attributes", lambda: _queues(transport, specs)
    )
    yield from run_check("sqs messages", "every message could be read", lambda: _unreadable(transport))
    if inspector is not None:
        names = [spec.name for spec in specs if spec.name not in {DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE}]
        yield from run_check(
            "sqs delays", "messages are received in time", lambda: _delayed(transport, names, inspector)
        )


def _queues(transport: SqsTransport, specs: Sequence[QueueSpec]) -> Iterator[Problem]:
    for spec in specs:
        try:
            differing = transport.differing_attributes(spec)
        except TransportRefused as error:
            named = f"queue {transport.name(spec.name)}"
            text = error.problem if error.problem.startswith(named) else f"{named}: {error.problem}"
            yield Level.FAIL, text, error.remedy
            continue
        for name, (found, wanted) in differing.items():
            text = f"queue {transport.name(spec.name)}: {name} is {found or 'not set'}, and should be {wanted}"
            yield Level.WARN, text, f"{SETUP} corrects it"


def _unreadable(transport: SqsTransport) -> Iterator[Problem]:
    try:
        depth = transport.depth(UNREADABLE_QUEUE)
    except (TransportRefused, TransportUnavailable) as error:
        raise NotChecked from error
    if depth.ready:
        yield (
            Level.WARN,
            f"{depth.ready:,} messages in {transport.name(UNREADABLE_QUEUE)}: received often and never deleted",
            "read them in the SQS console; their jobs are not lost, the store sends others",
        )


def _delayed(transport: SqsTransport, queues: Sequence[str], inspector: Inspector) -> Iterator[Problem]:
    """Find old messages by their jobs: SQS returns the age of a message only to those who receive it."""
    now = inspector.now()
    for queue in queues:
        waiting = [
            (each.message_sent_at, each.id)
            for each in inspector.next_up(queue, limit=SAMPLE)
            if each.message_sent_at is not None
        ]
        oldest, job_id = min(waiting, default=(now, None))
        if oldest > now - MAX_AGE:
            continue
        age = duration_text((now - oldest).total_seconds())
        try:
            ready = transport.depth(queue).ready
        except (TransportRefused, TransportUnavailable) as error:
            raise NotChecked from error
        if ready:
            text = f"the oldest of {ready:,} messages in {transport.name(queue)} was sent {age} ago, for job {job_id}"
            yield Level.WARN, text, f"start workers: taskharbor worker --sqs -q {queue}"
        else:
            text = (
                f"the message of job {job_id} was sent {age} ago; {transport.name(queue)} is empty: it is lost or held"
            )
            yield Level.WARN, text, f"start an enqueuer, which sends it again: taskharbor enqueuer -q {queue}"
