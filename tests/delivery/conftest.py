from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskharbor.delivery.sqs import SqsTransport
from taskharbor.testing.sqs import Endpoint
from tests.support.transport_subjects import KEYS, REGION, one_reading

pytest.register_assert_rewrite("tests.support.transport_contract")

from tests.support.transport_contract import MAIL, SECOND  # noqa: E402  after registering it for assertion rewriting

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def quick_clients() -> Iterator[None]:
    with one_reading():
        yield


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**KEYS, "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint.start(seed=1) as started:
        yield started


@pytest.fixture
def transport(endpoint: Endpoint) -> Iterator[SqsTransport]:
    """A transport to its own endpoint, with one queue."""
    made = SqsTransport(endpoint_url=endpoint.url, region=REGION, answer_within=SECOND)
    made.ensure_queues([MAIL])
    yield made
    made.close()
