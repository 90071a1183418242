"""Signatures of AWS (version 4). An endpoint that has keys checks them, and rejects requests as SQS does."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

from taskharbor.testing.sqs.validation import SqsError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_AUTHORIZATION: Final = re.compile(
    rf"{_ALGORITHM} Credential=(?P<key>[^/]+)/(?P<scope>(?P<day>\d{{8}})/(?P<region>[^/]+)/sqs/aws4_request), *"
    r"SignedHeaders=(?P<headers>[^,]+), *Signature=(?P<signature>[0-9a-f]{64})"
)
_TIME: Final = "%Y%m%dT%H%M%SZ"
MAX_SKEW: Final = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """The secret of an access key, and the operations that its user is denied."""

    secret: str
    denied: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """What a signature is about. The names of *headers* are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes


def check_signature(
    request: SignedRequest, keys: Mapping[str, AccessKey], *, operation: str, region: str, now: datetime
) -> None:
    """Raise `SqsError` unless one of *keys* has signed the request, for this region and time, and allows the call."""
    given = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
    signed_at = request.headers.get("x-amz-date", "")
    if given is None or not signed_at:
        raise SqsError("MissingAuthenticationToken", "Request is missing Authentication Token")
    key = keys.get(given["key"])
    if key is None:
        raise SqsError("InvalidClientTokenId", "The security token included in the request is invalid.")
    if given["region"] != region:
        raise SqsError("SignatureDoesNotMatch", "Credential should be scoped to a valid region.")
    if now - datetime.strptime(signed_at, _TIME).replace(tzinfo=UTC) > MAX_SKEW:
        raise SqsError("SignatureDoesNotMatch", f"Signature expired: {signed_at} is now earlier than {now:{_TIME}}")
    canonical = _canonical(request, given["headers"].split(";"))
    text = "\n".join([_ALGORITHM, signed_at, given["scope"], hashlib.sha256(canonical.encode()).hexdigest()])
    if not hmac.compare_digest(_signing_key(key, given["scope"], text).hex(), given["signature"]):
        message = "The request signature we calculated does not match the signature you provided."
        raise SqsError("SignatureDoesNotMatch", message)
    if operation in key.denied:
        raise SqsError("AccessDenied", f"User {given['key']} is not authorized to perform: sqs:{operation.lower()}")


def _canonical(request: SignedRequest, names: list[str]) -> str:
    """Return the text whose hash is signed."""
    path, _, query = request.path.partition("?")
    headers = "".join(f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in names)
    content = hashlib.sha256(request.content).hexdigest()
    return "\n".join([request.method, path or "/", query, headers, ";".join(names), content])


def _signing_key(key: AccessKey, scope: str, text: str) -> bytes:
    """Return the signature of *text*: each part of the scope is signed with the signature of the part before."""
    parts = [*scope.split("/"), text]
    return reduce(
        lambda secret, part: hmac.digest(secret, part.encode(), "sha256"), parts, f"AWS4{key.secret}".encode()
    )
