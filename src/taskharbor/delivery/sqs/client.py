"""boto3's clients, and one way to call them. Nothing else here loads it: that takes a third of a second."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore import exceptions as boto
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError
from botocore.parsers import ResponseParserError

from taskharbor.delivery.sqs.error_codes import MISSING, THROTTLED, short_code
from taskharbor.delivery.transport import TransportRefused, TransportUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

CAUGHT: Final = (boto.BotoCoreError, boto.ClientError, ResponseParserError)

_NO_QUEUE: Final = (
    "there is no queue {queue} at {place}",
    "make it with 'taskharbor sqs setup', or correct the region or the prefix",
)
_DENIED: Final = (
    "{action} on {queue} is denied ({said})",
    "allow {action} to this role or user; 'taskharbor sqs policy' prints all that is needed",
)
_EXPIRED: Final = ("the session token for AWS has expired", "log in again, or let it be renewed")
_CLOCK: Final = ("the clock of this machine is wrong ({said})", "set it")
_REGION: Final = ("the region does not fit {place} ({said})", "correct the region (AWS_REGION, or region=)")
_BAD_KEY: Final = ("AWS does not accept these credentials ({said})", "correct the key, its secret and the region")
_NO_SQS: Final = ("{place} does not answer as SQS does", "see that the endpoint URL is the one of SQS")
_OTHER: Final = ("{operation} on {queue}: {said} ({code})", "see what it names, and correct it")

_REFUSALS: Final = {
    **dict.fromkeys(MISSING, _NO_QUEUE),
    **dict.fromkeys(["AccessDenied", "AccessDeniedException", "KmsAccessDenied", "NotAuthorized"], _DENIED),
    **dict.fromkeys(["ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"], _EXPIRED),
    **dict.fromkeys(["RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed"], _CLOCK),
    "AuthFailure": _BAD_KEY,
    "IncompleteSignature": _BAD_KEY,
    "InvalidAccessKeyId": _BAD_KEY,
    "InvalidClientTokenId": _BAD_KEY,
    "InvalidSignatureException": _BAD_KEY,
    "MissingAuthenticationToken": _BAD_KEY,
    "MissingAuthenticationTokenException": _BAD_KEY,
    "SignatureDoesNotMatch": _BAD_KEY,
    "UnrecognizedClientException": _BAD_KEY,
}
# Some codes stand for several things, which only the words tell apart.
_WORDS: Final = {"Signature expired": _CLOCK, "scoped to a valid region": _REGION}

_NO_KEYS: Final = (
    "no credentials for AWS were found ({said})",
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give this machine a role",
)
_KEYS_NOT_HAD: Final = ("credentials for AWS could not be had ({said})", "log in again")
_NO_REGION: Final = ("no AWS region was given", "set AWS_REGION, or pass region=")
_BAD_CONFIG: Final = ("{said}", "correct the configuration of AWS that it names")
_LOCAL: Final[Mapping[type[Exception], tuple[str, str]]] = {
    ResponseParserError: _NO_SQS,
    boto.NoCredentialsError: _NO_KEYS,
    boto.PartialCredentialsError: _NO_KEYS,
    boto.UnknownCredentialError: _NO_KEYS,
    boto.CredentialRetrievalError: _KEYS_NOT_HAD,
    boto.TokenRetrievalError: _KEYS_NOT_HAD,
    boto.SSOError: _KEYS_NOT_HAD,
    getattr(boto, "LoginError", boto.SSOError): _KEYS_NOT_HAD,  # younger than the oldest boto3 that we take
    boto.NoRegionError: _NO_REGION,
    Exception: _BAD_CONFIG,
}

_NOT_SENT: Final = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
_AWAY: Final = (boto.HTTPClientError, boto.ConnectionError, boto.IncompleteReadError)
LONGEST_POLL: Final = 20
"""Seconds; what SQS allows."""

_CONNECT: Final = 3  # seconds
_WITHOUT_POLLERS: Final = 16  # connections for all calls that do not poll
_ASKED_TWICE: Final = frozenset(
    {"ChangeMessageVisibilityBatch", "DeleteMessageBatch", "GetQueueAttributes", "GetQueueUrl", "SetQueueAttributes"}
)
"""To do these twice is to do them once. A send is not repeated here: its caller shall know whether it went out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """What was being done when it failed: for the words."""

    operation: str
    queue: str
    place: str
    region_exists: bool = True

    def refusal(self, words: tuple[str, str], *, said: str, code: str = "") -> TransportRefused:
        facts = {"operation": self.operation, "queue": self.queue, "place": self.place, "said": said or code}
        action = f"sqs:{self.operation.removesuffix('Batch')}"
        what, way_out = (part.format(**facts, action=action, code=code) for part in words)
        return TransportRefused(what, way_out, code=code)


def translate_error(error: Exception, doing: CallContext) -> TransportUnavailable | TransportRefused:
    """Tell whether trying again may help, and if not, what would."""
    if isinstance(error, boto.ClientError):
        return _answered(error.response, doing)
    said = " ".join(str(error).split())
    if isinstance(error, boto.EndpointConnectionError) and not doing.region_exists:
        return doing.refusal(_REGION, said=said)
    if isinstance(error, _AWAY):
        return TransportUnavailable(f"{doing.place}: {said}", is_unknown=not isinstance(error, _NOT_SENT))
    return doing.refusal(next(_LOCAL[kind] for kind in type(error).__mro__ if kind in _LOCAL), said=said)


def _answered(
    response: Mapping[str, Mapping[str, object]], doing: CallContext
) -> TransportUnavailable | TransportRefused:
    code = short_code(str(response.get("Error", {}).get("Code", "")))
    said = " ".join(str(response.get("Error", {}).get("Message", "")).split())
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if code in THROTTLED:
        return TransportUnavailable(f"{doing.place} asks us to slow down ({code})", code=code, is_unknown=False)
    if isinstance(status, int) and status >= 500:  # noqa: PLR2004  as HTTP has it
        return TransportUnavailable(f"{doing.place} fails by itself ({code or status})", code=code)
    by_words = next((words for part, words in _WORDS.items() if part in said), None)
    by_code = _REFUSALS.get(code, _OTHER if code and not code.isdigit() else _NO_SQS)
    return doing.refusal(by_words or by_code, said=said, code=code)


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
