"""Endpoints for the contract, and how to look at one without the transport that is under test."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import boto3
import botocore.session
import pytest
from botocore.config import Config
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from taskharbor.testing.sqs import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

REGION: Final = "us-east-1"
KEYS: Final = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
MOTO_DEADLINE: Final = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class Subject:
    """An endpoint. *requests* tells what arrived there by operation, where it *counts* that."""

    url: str
    requests: Callable[[], Counter[str]] = Counter
    counts: bool = False


@contextmanager
def one_reading() -> Iterator[None]:
    """Let boto3 read the description of SQS once for all clients: that is most of what making one takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        yield


def raw_client(url: str) -> Any:
    """Return boto3's own client: what it sees is the verdict."""
    return boto3.session.Session().client(
        "sqs",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        config=Config(retries={"total_max_attempts": 1}, read_timeout=30),
    )


@contextmanager
def ours() -> Iterator[Subject]:
    with Endpoint.start() as endpoint:
        yield Subject(endpoint.url, endpoint.requests.copy, counts=True)


@contextmanager
def moto() -> Iterator[Subject]:
    """Start moto's own server, with a counter in front of it."""
    requests: Counter[str] = Counter()
    served = DomainDispatcherApplication(create_backend_app)

    def counted(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        requests[environ.get("HTTP_X_AMZ_TARGET", "").removeprefix("AmazonSQS.")] += 1
        answer: Iterable[bytes] = served(environ, start_response)
        return answer

    server = make_server("127.0.0.1", 0, counted, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Subject(f"http://127.0.0.1:{server.server_port}", requests.copy, counts=True)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(MOTO_DEADLINE)


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as AWS keeps them

    def log(self, type: str, message: str, *args: object) -> None:
        pass
