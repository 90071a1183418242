"""Reaching SQS from a command line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskharbor.delivery.sqs import SqsTransport
    from taskharbor.delivery.transport import QueueSpec

MAX_RECEIVES: Final = 1_000
"""The most that SQS allows: a message may wait for a long job, and is not to be taken for one that nobody can read."""


@contextmanager
def sqs_transport(*, pollers: int = 1) -> Iterator[SqsTransport]:
    """Open SQS as the environment says: its prefix and region; the rest is found as boto3 finds it."""
    from taskharbor.delivery.sqs import PREFIX, SqsTransport
    from taskharbor.settings import Settings

    settings = Settings.from_env()
    transport = SqsTransport(
        prefix=PREFIX if settings.sqs_prefix is None else settings.sqs_prefix,
        region=settings.aws_region,
        pollers=pollers,
    )
    try:
        yield transport
    finally:
        transport.close()


def queue_names(text: str) -> tuple[str, ...]:
    """Read queues such as mail,default."""
    from taskharbor.cli.options import InvalidValue
    from taskharbor.core.request import QUEUE_PATTERN

    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if QUEUE_PATTERN.fullmatch(name) is None:
            raise InvalidValue(name, f"a queue's name must match {QUEUE_PATTERN.pattern}")
    return names


queues_option = click.option(
    "-q",
    "--queues",
    type=queue_names,
    metavar="NAME,…",
    default="default",
    show_default=True,
    help="Which queues.",
)


def queue_shapes(queues: Sequence[str]) -> list[QueueSpec]:
    """Return the specs of the queues: one for each of *queues*, and two of our own."""
    from datetime import timedelta

    from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE, QueueSpec
    from taskharbor.worker.config import VISIBILITY

    keeps = timedelta(days=14)  # the most that SQS allows: people read these
    return [
        QueueSpec(name=UNREADABLE_QUEUE, visibility=VISIBILITY, retention=keeps),
        QueueSpec(name=DEAD_EVENTS_QUEUE, visibility=VISIBILITY, retention=keeps),
        *(
            # A message is worth nothing for long: the store sends another.
            QueueSpec(
                name=name,
                visibility=VISIBILITY,
                retention=timedelta(days=4),
                dead_letters=UNREADABLE_QUEUE,
                max_receives=MAX_RECEIVES,
            )
            for name in queues
        ),
    ]
