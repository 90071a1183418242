"""SQS endpoints for the transport contract, and a boto3 client to inspect them."""

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
MOTO_STOP_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Subject:
    """An endpoint. If it *counts*, *requests* returns the number of received requests by operation."""

    url: str
    requests: Callable[[], Counter[str]] = Counter
    counts: bool = False


@contextmanager
def one_reading() -> Iterator[None]:
    """Cache boto3's description of SQS for all clients: reading it takes most of the time to create one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        yield


def raw_client(url: str) -> Any:
    """Return a boto3 client, which the tests use to check results."""
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
    """Start moto's server with a request counter in front."""
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
        thread.join(MOTO_STOP_SECONDS)


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # keep connections open, as AWS does

    def log(self, type: str, message: str, *args: object) -> None:
        pass
