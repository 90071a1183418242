"""SQS for commands: the transport, the queues of an app or an option, and their attributes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from taskharbor.cli.queue_option import queue_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskharbor.delivery.sqs import SqsTransport
    from taskharbor.delivery.transport import QueueSpec
    from taskharbor.harbor import Harbor

MAX_RECEIVES: Final = 1_000
"""The maximum that SQS allows: a message that waits for a long job must not be treated as unreadable."""


@contextmanager
def sqs_transport(*, pollers: int = 1) -> Iterator[SqsTransport]:
    """Open an SQS transport with the prefix and region of the environment; boto3 finds the rest."""
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
    """Parse queue names such as mail,default."""
    from taskharbor.cli.options import InvalidValue
    from taskharbor.core.request import QUEUE_PATTERN

    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if QUEUE_PATTERN.fullmatch(name) is None:
            raise InvalidValue(name, f"a queue name must match {QUEUE_PATTERN.pattern}")
    return names


queues_option = queue_option(
    queue_names,
    metavar="NAME,…",
    help_text="Names of the queues.  [default: default, and those of the app's tasks]",
)


def harbor_with_queues(app: str | None, queues: tuple[str, ...] | None) -> Harbor:
    """Return the harbor of *app*; without *app*, that of the app that a worker would find, if no *queues* are given."""
    from taskharbor.cli.app_loader import harbor_for
    from taskharbor.harbor import Harbor

    return Harbor() if app is None and queues else harbor_for(app)


def queues_of(app: str | None, queues: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the given *queues*, else those of the app."""
    return queues or tuple(harbor_with_queues(app, queues).queues)


def queue_shapes(queues: Sequence[str]) -> list[QueueSpec]:
    """Return the specs of *queues* and of the two queues for unreadable messages and dead-letter events."""
    from datetime import timedelta

    from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE, QueueSpec
    from taskharbor.worker.config import VISIBILITY

    max_retention = timedelta(days=14)  # the maximum of SQS; these two queues are read by people
    return [
        QueueSpec(name=UNREADABLE_QUEUE, visibility=VISIBILITY, retention=max_retention),
        QueueSpec(name=DEAD_EVENTS_QUEUE, visibility=VISIBILITY, retention=max_retention),
        *(
            # A job message may be lost: the store sends another.
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
