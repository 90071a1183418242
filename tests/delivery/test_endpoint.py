"""The SQS endpoint for tests, beyond the contract of the transport."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from taskharbor.delivery.sqs import SqsTransport
from taskharbor.testing.sqs import Endpoint, EndpointFaults
from tests.support.transport_contract import MAIL, MINUTE, messages, received
from tests.support.transport_subjects import REGION, raw_client
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

NAME = "taskharbor-mail"


@pytest.fixture
def sqs(endpoint: Endpoint) -> Iterator[Any]:
    client = raw_client(endpoint.url)
    yield client
    client.close()


def test_the_same_seed_injects_the_same_faults() -> None:
    faults = EndpointFaults(lose=0.3, duplicate=0.3, reorder=0.5, reject=0.2)

    assert fates(faults, seed=7) == fates(faults, seed=7)
    assert fates(faults, seed=7) != fates(faults, seed=8)


def test_faults_may_concern_some_calls_only(endpoint: Endpoint, transport: SqsTransport) -> None:
    endpoint.faults = EndpointFaults(lose=1, cut=1, operations=frozenset({"DeleteMessageBatch"}))

    assert transport.send("mail", messages(1)) == [None]
    assert endpoint.depth(NAME) == (1, 0, 0)


def test_the_endpoint_clock_can_be_advanced(endpoint: Endpoint, transport: SqsTransport) -> None:
    transport.send("mail", messages(1))
    received(transport)

    endpoint.advance(MINUTE)

    assert endpoint.depth(NAME) == (1, 0, 0)
    endpoint.advance(timedelta(days=4))
    assert received(transport) == []


def test_a_poll_of_a_disconnected_client_receives_no_message(
    endpoint: Endpoint, transport: SqsTransport, sqs: Any
) -> None:
    url = sqs.get_queue_url(QueueName=NAME)["QueueUrl"]
    client = http.client.HTTPConnection("127.0.0.1", endpoint.port)
    asked = {"QueueUrl": url, "WaitTimeSeconds": 20}
    client.request("POST", "/", json.dumps(asked), {"X-Amz-Target": "AmazonSQS.ReceiveMessage"})
    wait_until(lambda: endpoint.requests["ReceiveMessage"] == 1)  # otherwise the message may be sent before the poll
    client.close()

    transport.send("mail", messages(1))

    assert [got.receive_count for got in received(transport)] == [1]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ({"Entries": []}, "AWS.SimpleQueueService.EmptyBatchRequest"),
        ({"Entries": [{"Id": str(n), "MessageBody": "x"} for n in range(11)]}, "TooManyEntriesInBatchRequest"),
        ({"Entries": [{"Id": "0", "MessageBody": "x"}] * 2}, "BatchEntryIdsNotDistinct"),
        ({"Entries": [{"Id": "0", "MessageBody": "x" * 1_100_000}]}, "BatchRequestTooLong"),
        ({"Entries": [{"Id": "0", "MessageBody": "\x00"}]}, "InvalidMessageContents"),
        ({"Entries": [{"Id": "0", "MessageBody": "x"}], "QueueUrl": "http://x/none"}, "NonExistentQueue"),
    ],
)
def test_requests_that_sqs_refuses_get_its_error_codes(
    transport: SqsTransport, sqs: Any, call: dict[str, Any], code: str
) -> None:
    url = sqs.get_queue_url(QueueName=transport.name("mail"))["QueueUrl"]

    with pytest.raises(ClientError, match=code):
        sqs.send_message_batch(**{"QueueUrl": url, **call})


def test_an_attribute_out_of_bounds_is_refused(transport: SqsTransport, sqs: Any) -> None:
    url = sqs.get_queue_url(QueueName=transport.name("mail"))["QueueUrl"]

    with pytest.raises(ClientError, match="InvalidAttributeValue"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"MessageRetentionPeriod": "59"})


def test_single_calls_do_what_batches_do(transport: SqsTransport, sqs: Any) -> None:
    url = sqs.get_queue_url(QueueName=transport.name("mail"))["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="one")
    [got] = sqs.receive_message(QueueUrl=url)["Messages"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    [again] = sqs.receive_message(QueueUrl=url)["Messages"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])

    sqs.send_message(QueueUrl=url, MessageBody="two")
    sqs.purge_queue(QueueUrl=url)

    assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0)
    assert sqs.list_queues(QueueNamePrefix="taskharbor")["QueueUrls"] == [url]


def test_the_endpoint_process_can_be_controlled_killed_and_restarted_on_its_port() -> None:
    with (
        process("--faults", '{"lose": 1}', "--seed", "3") as (first, url),
        closing(SqsTransport(endpoint_url=url, region=REGION)) as transport,
    ):
        transport.ensure_queues([MAIL])
        transport.send("mail", messages(1))
        after_change = control(url, {"faults": {}})
        transport.send("mail", messages(1))
        state = control(url, {})
        first.kill()
        first.wait(10)
        with process("--port", url.rpartition(":")[2]) as (second, same):
            transport.ensure_queues([MAIL])
            second.terminate()
            ended = second.wait(10)

    assert (after_change["happened"]["lose"], after_change["depths"]) == (1, {NAME: [0, 0, 0]})
    assert (state["requests"]["SendMessageBatch"], state["depths"]) == (2, {NAME: [1, 0, 0]})
    assert (same, ended) == (url, 0)


def test_a_fault_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="no such fault: loose; known faults: lose, duplicate"):
        EndpointFaults.from_json('{"loose": 1}')


def fates(faults: EndpointFaults, *, seed: int) -> tuple[list[bool], list[str], Counter[str]]:
    """Return the results, the received bodies and the injected faults."""
    with Endpoint.start(faults=faults, seed=seed) as endpoint:
        transport = SqsTransport(endpoint_url=endpoint.url, region=REGION)
        transport.ensure_queues([MAIL])
        answers = transport.send("mail", messages(30))
        arrived = [got.body for _ in range(6) for got in received(transport)]
        transport.close()
        return [answer is None for answer in answers], arrived, endpoint.happened


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "taskharbor.testing.sqs", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            yield started, started.stdout.readline().strip()
        finally:
            started.kill()


def control(url: str, asked: dict[str, Any]) -> dict[str, Any]:
    client = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    client.request("POST", "/_control", json.dumps(asked))
    answer: dict[str, Any] = json.loads(client.getresponse().read())
    client.close()
    return answer
