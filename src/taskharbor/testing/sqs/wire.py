"""HTTP, as far as boto3 needs it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.testing.sqs.errors import SqsError

_TARGET: Final = "AmazonSQS."


@dataclass(frozen=True, slots=True)
class Request:
    """A call. *operation* is empty where it is none of SQS."""

    path: str
    operation: str
    body: Mapping[str, Any]


async def read(reader: asyncio.StreamReader) -> Request | None:
    """Return the next request of a connection, or None where it ends."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        text = await reader.readexactly(int(headers.get("content-length") or 0))
    except asyncio.IncompleteReadError:  # also where a client is killed in the middle of a request
        return None
    return Request(
        path=first.split(" ")[1],
        operation=headers.get("x-amz-target", "").removeprefix(_TARGET),
        body=json.loads(text or b"{}"),
    )


def answer(body: Mapping[str, Any]) -> bytes:
    return _response(HTTPStatus.OK, body)


def refusal(error: SqsError) -> bytes:
    body = {"__type": f"com.amazonaws.sqs#{error.code}", "message": error.message}
    return _response(HTTPStatus(error.status), body, f"x-amzn-query-error: {error.header}\r\n")


def _response(status: HTTPStatus, body: Mapping[str, Any], more: str = "") -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(content)}\r\n{more}\r\n"
    )
    return head.encode("latin-1") + content
