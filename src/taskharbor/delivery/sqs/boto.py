"""boto3's clients, and one way to call them. Nothing else here loads it: that takes a third of a second."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError

from taskharbor.delivery.sqs.failures import CAUGHT, CallContext, translate_error
from taskharbor.delivery.transport import TransportUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_POLL: Final = 20
"""Seconds; what SQS allows."""

_CONNECT: Final = 3  # seconds
_WITHOUT_POLLERS: Final = 16  # connections for all calls that do not poll
_ASKED_TWICE: Final = frozenset(
    {"ChangeMessageVisibilityBatch", "DeleteMessageBatch", "GetQueueAttributes", "GetQueueUrl", "SetQueueAttributes"}
)
"""To do these twice is to do them once. A send is not repeated here: its caller shall know whether it went out."""


class SqsClients:
    """Two clients, shared by all threads of a process: one for calls that wait for messages, one for the others.

    A client has one deadline for all answers. That of a long poll would let a send hang for half a minute.
    """

    def __init__(self, *, endpoint_url: str | None, region: str | None, pollers: int, answer_within: float) -> None:
        quick = _config(_WITHOUT_POLLERS, answer_within)
        patient = _config(pollers, LONGEST_POLL + answer_within)
        try:
            self._session = boto3.session.Session(region_name=region)
            self._quick = self._session.client("sqs", endpoint_url=endpoint_url, config=quick)
            self._patient = self._session.client("sqs", endpoint_url=endpoint_url, config=patient)
        except (*CAUGHT, ValueError) as error:  # ValueError: an endpoint that is no URL
            raise translate_error(error, CallContext(operation="", queue="", place=endpoint_url or "SQS")) from error
        self._counting = threading.Lock()
        self._calls: Counter[str] = Counter()

    @property
    def calls(self) -> Counter[str]:
        with self._counting:
            return self._calls.copy()

    def call(self, operation: str, queue: str, **parameters: object) -> Mapping[str, Any]:
        """Call SQS. *queue* is the name that SQS knows, for the words of an error."""
        try:
            return self._call_once(operation, queue, parameters)
        except TransportUnavailable as error:
            # A connection that was idle is sometimes found cut. Who is asked to slow down does not ask again.
            if operation not in _ASKED_TWICE or error.code or not error.is_unknown:
                raise
        return self._call_once(operation, queue, parameters)

    def close(self) -> None:
        self._quick.close()
        self._patient.close()

    def _call_once(self, operation: str, queue: str, parameters: Mapping[str, object]) -> Mapping[str, Any]:
        with self._counting:
            self._calls[operation] += 1
        client = self._patient if operation == "ReceiveMessage" else self._quick
        try:
            answer: Mapping[str, Any] = getattr(client, xform_name(operation))(**parameters)
        except CAUGHT as error:
            place = f"{client.meta.endpoint_url} ({client.meta.region_name})"
            # A region may be newer than this boto3: it is doubted only where nobody is found.
            exists = not isinstance(error, EndpointConnectionError) or self._region_exists(client.meta)
            doing = CallContext(operation=operation, queue=queue, place=place, region_exists=exists)
            raise translate_error(error, doing) from error
        return answer

    def _region_exists(self, meta: Any) -> bool:
        partitions = self._session.get_available_partitions()
        known = chain.from_iterable(self._session.get_available_regions("sqs", each) for each in partitions)
        return "amazonaws" not in meta.endpoint_url or meta.region_name in known


def _config(connections: int, answer_within: float) -> Config:
    return Config(
        max_pool_connections=connections,
        tcp_keepalive=True,
        connect_timeout=_CONNECT,
        read_timeout=answer_within,
        parameter_validation=False,  # we make the parameters ourselves: it would cost a call a tenth of its time
        user_agent="taskharbor",  # likewise
        retries={"mode": "standard", "total_max_attempts": 1},
    )
