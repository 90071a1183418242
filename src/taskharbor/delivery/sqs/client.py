"""boto3 clients, and translation of their errors. The only module that imports boto3, which takes 0.3 s."""

from __future__ import annotations

import re
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

CAUGHT: Final = (boto.BotoCoreError, boto.ClientError, ResponseParserError, OSError, ValueError)
"""The last two are of a program that boto3 starts for credentials, which is missing or prints something else, or of a
URL. An error that is not translated would keep a worker from polling the store instead.
"""

_NO_QUEUE: Final = (
    "queue {queue} does not exist at {place}",
    "create it with 'taskharbor sqs setup', or correct the region or the prefix",
)
_DENIED: Final = (
    "{action} on {queue} is denied ({message})",
    "allow {action} for this role or user; 'taskharbor sqs policy' prints the required policy",
)
_EXPIRED: Final = ("the AWS session token has expired", "log in again or renew it")
_CLOCK: Final = ("the clock of this machine is wrong ({message})", "synchronize it")
_REGION: Final = ("the region does not match {place} ({message})", "correct the region (AWS_REGION or region=)")
_BAD_KEY: Final = ("AWS rejected the credentials ({message})", "correct the key, its secret and the region")
_NO_SQS: Final = ("{place} did not reply like SQS", "check the endpoint URL")
_OTHER: Final = ("{operation} on {queue}: {message} ({code})", "correct the reported problem")

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
# Some codes have several causes, which only the message distinguishes.
_BY_MESSAGE: Final = {"Signature expired": _CLOCK, "scoped to a valid region": _REGION}

_NO_KEYS: Final = (
    "no credentials for AWS found ({message})",
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give this machine a role",
)
_KEYS_UNAVAILABLE: Final = ("AWS credentials could not be retrieved ({message})", "log in again")
_NO_REGION: Final = ("no AWS region configured", "set AWS_REGION or pass region=")
_BAD_CONFIG: Final = ("{message}", "correct this AWS configuration")
_LOCAL: Final[Mapping[type[Exception], tuple[str, str]]] = {
    ResponseParserError: _NO_SQS,
    boto.NoCredentialsError: _NO_KEYS,
    boto.PartialCredentialsError: _NO_KEYS,
    boto.UnknownCredentialError: _NO_KEYS,
    boto.CredentialRetrievalError: _KEYS_UNAVAILABLE,
    boto.TokenRetrievalError: _KEYS_UNAVAILABLE,
    boto.SSOError: _KEYS_UNAVAILABLE,
    getattr(boto, "LoginError", boto.SSOError): _KEYS_UNAVAILABLE,  # missing in the oldest supported boto3
    boto.NoRegionError: _NO_REGION,
    Exception: _BAD_CONFIG,
}

_LOGIN: Final = re.compile(r"(?<=://)[^\s\"]*@")
"""User and password in the URL of an endpoint. Errors are logged, stored with the queue, and shown to operators."""

_NOT_SENT: Final = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
_UNREACHABLE: Final = (boto.HTTPClientError, boto.ConnectionError, boto.IncompleteReadError)
MAX_RECEIVE_WAIT_SECONDS: Final = 20
"""The maximum wait that SQS allows."""

_CONNECT_TIMEOUT_SECONDS: Final = 3
_MAX_CONNECTIONS: Final = 16
"""For all calls other than receives, which have one connection per poller."""
_RETRIED: Final = frozenset(
    {"ChangeMessageVisibilityBatch", "DeleteMessageBatch", "GetQueueAttributes", "GetQueueUrl", "SetQueueAttributes"}
)
"""Idempotent operations. A send is not retried here: its caller must know whether it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The failed call, for its error message."""

    operation: str
    queue: str
    place: str
    region_exists: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", _masked(self.place))

    def refusal(self, texts: tuple[str, str], *, message: str, code: str = "") -> TransportRefused:
        facts = {"operation": self.operation, "queue": self.queue, "place": self.place, "message": message or code}
        action = f"sqs:{self.operation.removesuffix('Batch')}"
        problem, remedy = (text.format(**facts, action=action, code=code) for text in texts)
        return TransportRefused(problem, remedy, code=code)


def _masked(text: str) -> str:
    return _LOGIN.sub("***@", text)


def translate_error(error: Exception, context: CallContext) -> TransportUnavailable | TransportRefused:
    """Return `TransportUnavailable` if a retry may help, otherwise `TransportRefused` with a remedy."""
    if isinstance(error, boto.ClientError):
        return _translate_response(error.response, context)
    message = _masked(" ".join(str(error).split()))
    if isinstance(error, boto.EndpointConnectionError) and not context.region_exists:
        return context.refusal(_REGION, message=message)
    if isinstance(error, _UNREACHABLE):
        return TransportUnavailable(f"{context.place}: {message}", is_unknown=not isinstance(error, _NOT_SENT))
    return context.refusal(next(_LOCAL[kind] for kind in type(error).__mro__ if kind in _LOCAL), message=message)


def _translate_response(
    response: Mapping[str, Mapping[str, object]], context: CallContext
) -> TransportUnavailable | TransportRefused:
    code = short_code(str(response.get("Error", {}).get("Code", "")))
    message = " ".join(str(response.get("Error", {}).get("Message", "")).split())
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if code in THROTTLED:
        return TransportUnavailable(f"{context.place} throttles requests ({code})", code=code, is_unknown=False)
    if isinstance(status, int) and status >= 500:  # noqa: PLR2004  HTTP server errors
        return TransportUnavailable(f"{context.place} failed internally ({code or status})", code=code)
    by_message = next((texts for part, texts in _BY_MESSAGE.items() if part in message), None)
    by_code = _REFUSALS.get(code, _OTHER if code and not code.isdigit() else _NO_SQS)
    return context.refusal(by_message or by_code, message=message, code=code)


class SqsClients:
    """Two clients, shared by all threads of a process: one for receives, one for all other calls.

    A client has one read timeout. The timeout of a long poll would let a send hang for half a minute.
    """

    def __init__(self, *, endpoint_url: str | None, region: str | None, pollers: int, answer_within: float) -> None:
        short = _config(_MAX_CONNECTIONS, answer_within)
        long = _config(pollers, MAX_RECEIVE_WAIT_SECONDS + answer_within)
        try:
            self._session = boto3.session.Session(region_name=region)
            self._client = self._session.client("sqs", endpoint_url=endpoint_url, config=short)
            self._receiving_client = self._session.client("sqs", endpoint_url=endpoint_url, config=long)
        except CAUGHT as error:
            raise translate_error(error, CallContext(operation="", queue="", place=endpoint_url or "SQS")) from error
        self._counting = threading.Lock()
        self._calls: Counter[str] = Counter()

    @property
    def calls(self) -> Counter[str]:
        with self._counting:
            return self._calls.copy()

    def call(self, operation: str, queue: str, **parameters: object) -> Mapping[str, Any]:
        """Call SQS. *queue* is the name in SQS, for error messages."""
        try:
            return self._call_once(operation, queue, parameters)
        except TransportUnavailable as error:
            # An idle connection may have been closed: retry once. Do not retry if throttled.
            if operation not in _RETRIED or error.code or not error.is_unknown:
                raise
        return self._call_once(operation, queue, parameters)

    def close(self) -> None:
        self._client.close()
        self._receiving_client.close()

    def _call_once(self, operation: str, queue: str, parameters: Mapping[str, object]) -> Mapping[str, Any]:
        with self._counting:
            self._calls[operation] += 1
        client = self._receiving_client if operation == "ReceiveMessage" else self._client
        try:
            answer: Mapping[str, Any] = getattr(client, xform_name(operation))(**parameters)
        except CAUGHT as error:
            place = f"{client.meta.endpoint_url} ({client.meta.region_name})"
            # Check the region only if its host does not exist: it may be newer than this boto3.
            exists = not isinstance(error, EndpointConnectionError) or self._region_exists(client.meta)
            context = CallContext(operation=operation, queue=queue, place=place, region_exists=exists)
            raise translate_error(error, context) from error
        return answer

    def _region_exists(self, meta: Any) -> bool:
        partitions = self._session.get_available_partitions()
        known = chain.from_iterable(self._session.get_available_regions("sqs", each) for each in partitions)
        return "amazonaws" not in meta.endpoint_url or meta.region_name in known


def _config(connections: int, answer_within: float) -> Config:
    return Config(
        max_pool_connections=connections,
        tcp_keepalive=True,
        connect_timeout=_CONNECT_TIMEOUT_SECONDS,
        read_timeout=answer_within,
        parameter_validation=False,  # our parameters are valid, and validation takes a tenth of a call
        user_agent="taskharbor",  # building the default takes time too
        retries={"mode": "standard", "total_max_attempts": 1},
    )
