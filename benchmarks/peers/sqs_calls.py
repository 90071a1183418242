"""How many calls of SQS a job takes when a backlog is delivered by messages."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from benchmarks import _sqs
from benchmarks.peers.claims import CALLS, RATE
from tests.delivery.test_endpoint import process
from tests.support.transport_subjects import KEYS, REGION

if TYPE_CHECKING:
    from benchmarks.peers.measures import Trial
    from benchmarks.peers.plan import Sizes

BUNDLE: Final = 10
MAX_SECONDS: Final = 60.0
VISIBILITY: Final = timedelta(minutes=1)
OPERATIONS: Final = ("SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch")


def sqs_calls(trial: Trial, sizes: Sizes) -> dict[str, float]:
    """Drain a backlog that an enqueuer sends as messages to an endpoint of our own, which counts the calls."""
    with _sqs.credentials(), process() as (_, url), trial.store(jobs=sizes.sqs):
        environ = {**KEYS, "AWS_ENDPOINT_URL_SQS": url, "AWS_REGION": REGION, "AWS_CONFIG_FILE": "/dev/null"}
        with _sqs.transport_to(url, visibility=VISIBILITY), trial.messages(environ, bundle=BUNDLE):
            drained = trial.drain(sizes.sqs, max_seconds=MAX_SECONDS)
        calls = _sqs.asked(url)
    made = sum(calls.get(operation, 0) for operation in OPERATIONS)
    return {CALLS: made / sizes.sqs, RATE: drained.rate}
