"""The contract of the SQS transport as tests for any endpoint. A separate boto3 client checks the results."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.ids import new_job_id
from taskharbor.core.messages import MAX_BUNDLE, SEQ_RANGE, NamedJob, encode_message, parse_message
from taskharbor.delivery.sqs import SqsTransport
from taskharbor.delivery.transport import (
    DEAD_EVENTS_QUEUE,
    UNREADABLE_QUEUE,
    ItemFailure,
    OutgoingMessage,
    QueueDepth,
    QueueSpec,
    TransportRefused,
)
from tests.support.transport_subjects import KEYS, REGION, Subject, raw_client
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS: Final = count(1)
AT_ONCE: Final = timedelta(0)
SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
MAIL: Final = QueueSpec(name="mail", visibility=MINUTE, retention=timedelta(days=4))


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def transport(subject: Subject) -> Iterator[SqsTransport]:
    """A transport with its own queue prefix and one queue."""
    made = SqsTransport(prefix=f"t{next(_NUMBERS)}-", endpoint_url=subject.url, region=REGION)
    made.ensure_queues([MAIL])
    yield made
    made.close()


@pytest.fixture(scope="module")
def sqs(subject: Subject) -> Iterator[Any]:
    client = raw_client(subject.url)
    yield client
    client.close()


def test_every_call_reaches_the_endpoint(subject: Subject, transport: SqsTransport) -> None:
    calls, before = transport.calls, subject.requests()

    transport.send("mail", messages(23))
    transport.delete("mail", [got.receipt_handle for got in received(transport)])
    transport.depth("mail")

    made, arrived = transport.calls - calls, subject.requests() - before
    assert made == {"SendMessageBatch": 3, "ReceiveMessage": 1, "DeleteMessageBatch": 1, "GetQueueAttributes": 1}
    assert arrived == (made if subject.counts else {})


def test_messages_arrive_as_they_were_sent(transport: SqsTransport, sqs: Any) -> None:
    answers = transport.send("mail", messages(23))

    assert answers == [None] * 23
    assert sorted(bodies_at(sqs, transport.name("mail"))) == sorted(message.body for message in messages(23))


def test_a_message_from_another_sender_is_received(transport: SqsTransport, sqs: Any) -> None:
    url = sqs.get_queue_url(QueueName=transport.name("mail"))["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="from boto3")

    [got] = received(transport)

    assert (got.body, got.receive_count, got.attributes) == ("from boto3", 1, {})


def test_a_message_keeps_its_characters_and_its_trace(transport: SqsTransport) -> None:
    message = OutgoingMessage('{"a":"ä\n\t🚢 <&>"}', {"traceparent": "00-ab-cd-01", "tracestate": "x=ü"})

    transport.send("mail", [message])

    [got] = received(transport)
    assert (got.body, got.attributes) == (message.body, message.attributes)
    assert got.message_id
    assert got.receipt_handle not in repr(got)


def test_trace_fields_that_sqs_would_refuse_do_not_hold_a_message_back(transport: SqsTransport) -> None:
    fields = {"empty": "", "": "x", "AWS.x": "x", "a b": "x", "bad": "\x00", **{f"n{n}": "x" for n in range(20)}}

    answers = transport.send("mail", [OutgoingMessage("traced", fields)])

    [got] = received(transport)
    assert answers == [None]
    assert got.attributes == {f"n{n}": "x" for n in range(10)}


def test_a_received_message_is_hidden_until_it_is_shown(transport: SqsTransport) -> None:
    transport.send("mail", messages(1))
    [first] = received(transport)

    hidden = received(transport)
    shown = transport.change_visibility("mail", [(first.receipt_handle, AT_ONCE)])
    [second] = received(transport)

    assert hidden == []
    assert shown == [None]
    assert (second.message_id, second.receive_count) == (first.message_id, 2)


def test_a_message_comes_back_when_its_visibility_ends(transport: SqsTransport) -> None:
    transport.send("mail", messages(1))

    [first] = received(transport, visibility=SECOND)
    [second] = received(transport, wait=10 * SECOND)

    assert (second.message_id, second.receive_count) == (first.message_id, 2)


def test_a_message_stays_hidden_for_its_changed_visibility(transport: SqsTransport) -> None:
    transport.send("mail", messages(1))
    [got] = received(transport, visibility=3 * SECOND)

    transport.change_visibility("mail", [(got.receipt_handle, MINUTE)])

    assert received(transport, wait=4 * SECOND) == []


def test_a_deleted_message_is_gone(transport: SqsTransport, sqs: Any) -> None:
    transport.send("mail", messages(12))
    got = [*received(transport), *received(transport)]

    answers = transport.delete("mail", [each.receipt_handle for each in got])

    assert answers == [None] * 12
    assert sum(depth_at(sqs, transport.name("mail"))) == 0


def test_a_stale_receipt_handle_is_ignored(transport: SqsTransport) -> None:
    transport.send("mail", messages(2))
    [stale, gone] = received(transport)
    transport.delete("mail", [gone.receipt_handle])
    transport.change_visibility("mail", [(stale.receipt_handle, AT_ONCE)])
    received(transport)

    deleted = transport.delete("mail", [gone.receipt_handle, stale.receipt_handle])
    hidden = transport.change_visibility("mail", [(gone.receipt_handle, MINUTE), (stale.receipt_handle, MINUTE)])

    assert (deleted, hidden) == ([None, None], [None, None])


def test_a_long_poll_ends_when_a_message_comes(transport: SqsTransport) -> None:
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(received, transport, wait=20 * SECOND)
        wait_until(lambda: transport.calls["ReceiveMessage"] == 1)
        start = time.monotonic()
        transport.send("mail", messages(1))
        [got] = polling.result(15)

    assert got.body == messages(1)[0].body
    assert time.monotonic() - start < 15


def test_a_long_poll_without_messages_ends_after_its_wait(transport: SqsTransport) -> None:
    start = time.monotonic()

    assert received(transport, wait=SECOND) == []

    assert 0.5 < time.monotonic() - start < 10


def test_a_running_long_poll_returns_normally_when_the_transport_is_closed(transport: SqsTransport) -> None:
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(received, transport, wait=SECOND)
        wait_until(lambda: transport.calls["ReceiveMessage"] == 1)
        transport.close()

        assert polling.result(15) == []


def test_no_more_messages_come_than_were_asked_for(transport: SqsTransport) -> None:
    transport.send("mail", messages(12))

    assert len(received(transport, most=1)) == 1
    assert len(received(transport, most=100)) <= 10
    assert received(transport, most=0) == []


def test_a_message_that_cannot_be_sent_does_not_hold_up_the_others(transport: SqsTransport, sqs: Any) -> None:
    batch = [
        OutgoingMessage("before"),
        OutgoingMessage(""),
        OutgoingMessage("\x00"),
        OutgoingMessage("x" * 1_100_000),
        OutgoingMessage("after"),
    ]

    before, *bad, after = transport.send("mail", batch)

    assert (before, after) == (None, None)
    assert [isinstance(each, ItemFailure) and each.is_permanent and not each.is_unknown for each in bad] == [True] * 3
    assert sorted(bodies_at(sqs, transport.name("mail"))) == ["after", "before"]


def test_a_batch_that_is_too_large_is_split(transport: SqsTransport) -> None:
    answers = transport.send("mail", [OutgoingMessage("x" * 60_000)] * 10)

    assert answers == [None] * 10
    assert transport.calls["SendMessageBatch"] == 3
    assert sum(vars_of(transport.depth("mail"))) == 10


def test_ten_messages_with_as_many_jobs_as_allowed_go_in_one_call(transport: SqsTransport) -> None:
    bundles = [[NamedJob(new_job_id(), SEQ_RANGE[-1]) for _ in range(MAX_BUNDLE)] for _ in range(10)]

    assert transport.send("mail", [OutgoingMessage(encode_message(jobs)) for jobs in bundles]) == [None] * 10

    assert transport.calls["SendMessageBatch"] == 1
    found: list[tuple[NamedJob, ...] | None] = []

    def are_all_received() -> bool:  # one receive may return fewer than there are
        found.extend(parse_message(each.body) for each in received(transport))
        return len(found) == len(bundles)

    wait_until(are_all_received)
    assert sorted(map(str, found)) == sorted(str(tuple(jobs)) for jobs in bundles)


def test_nothing_is_called_for_an_empty_batch(transport: SqsTransport) -> None:
    before = transport.calls

    assert (transport.send("mail", []), transport.delete("mail", []), transport.change_visibility("mail", [])) == (
        [],
        [],
        [],
    )
    assert transport.calls == before


def test_the_depth_counts_ready_and_received_messages_separately(transport: SqsTransport) -> None:
    transport.send("mail", messages(5))
    received(transport, most=2)

    assert transport.depth("mail") == QueueDepth(ready=3, in_flight=2, delayed=0)


def test_queues_are_kept_apart(transport: SqsTransport) -> None:
    names = ["dead-events", "a.b", "a-dot-b", "a", DEAD_EVENTS_QUEUE]
    transport.ensure_queues([QueueSpec(name=name, visibility=MINUTE, retention=timedelta(days=4)) for name in names])

    for name in names:
        transport.send(name, [OutgoingMessage(f"for {name}")])

    assert {name: [got.body for got in received(transport, name)] for name in names} == {
        name: [f"for {name}"] for name in names
    }


def test_a_queue_is_created_with_its_attributes(transport: SqsTransport, sqs: Any) -> None:
    shape = QueueSpec(name="shaped", visibility=MINUTE, retention=timedelta(days=2), dead_letters=UNREADABLE_QUEUE)

    transport.ensure_queues([shape])

    found = attributes_at(sqs, transport.name("shaped"))
    unreadable = attributes_at(sqs, transport.name(UNREADABLE_QUEUE))
    redrive = json.loads(found["RedrivePolicy"])
    assert (found["VisibilityTimeout"], found["MessageRetentionPeriod"]) == ("60", "172800")
    assert found["ReceiveMessageWaitTimeSeconds"] == "20"
    assert redrive["deadLetterTargetArn"] == unreadable["QueueArn"]
    assert int(redrive["maxReceiveCount"]) == 100
    assert unreadable["MessageRetentionPeriod"] == "1209600"


def test_ensuring_a_queue_again_keeps_its_attributes_and_messages(transport: SqsTransport, sqs: Any) -> None:
    shape = QueueSpec(name="mail", visibility=MINUTE, retention=timedelta(days=4), dead_letters=UNREADABLE_QUEUE)
    transport.ensure_queues([shape])
    transport.send("mail", messages(1))
    before = attributes_at(sqs, transport.name("mail"))

    transport.ensure_queues([shape])

    assert attributes_at(sqs, transport.name("mail")) == before
    assert len(received(transport)) == 1


def test_a_queue_with_other_attributes_is_updated(transport: SqsTransport, sqs: Any) -> None:
    transport.ensure_queues(
        [QueueSpec(name="mail", visibility=MINUTE, retention=MINUTE, dead_letters=UNREADABLE_QUEUE)]
    )
    url = sqs.get_queue_url(QueueName=transport.name("mail"))["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7", "ReceiveMessageWaitTimeSeconds": "0"})

    transport.ensure_queues([MAIL])

    found = attributes_at(sqs, transport.name("mail"))
    assert (found["VisibilityTimeout"], found["MessageRetentionPeriod"]) == ("60", "345600")
    assert found["ReceiveMessageWaitTimeSeconds"] == "20"
    assert not found.get("RedrivePolicy")


def test_concurrent_creation_with_different_attributes_succeeds(transport: SqsTransport, sqs: Any) -> None:
    barrier = threading.Barrier(8)

    def ensure(n: int) -> None:
        barrier.wait(10)
        transport.ensure_queues([QueueSpec(name="raced", visibility=n * SECOND, retention=timedelta(days=4))])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ensure, range(8)))

    assert int(attributes_at(sqs, transport.name("raced"))["VisibilityTimeout"]) in range(8)


def test_a_message_that_is_received_too_often_is_put_aside(transport: SqsTransport) -> None:
    shape = QueueSpec(
        name="poison", visibility=MINUTE, retention=timedelta(days=4), dead_letters=UNREADABLE_QUEUE, max_receives=2
    )
    transport.ensure_queues([shape])
    transport.send("poison", [OutgoingMessage("unreadable")])

    for _ in range(2):
        [got] = received(transport, "poison")
        transport.change_visibility("poison", [(got.receipt_handle, AT_ONCE)])

    assert received(transport, "poison") == []
    assert [got.body for got in received(transport, UNREADABLE_QUEUE)] == ["unreadable"]


def test_a_missing_queue_is_reported_with_the_setup_command(transport: SqsTransport) -> None:
    with pytest.raises(TransportRefused) as caught:
        transport.send("nowhere", messages(1))

    text = str(caught.value)
    assert [part for part in (transport.name("nowhere"), REGION, "taskharbor sqs setup") if part not in text] == []


def test_a_queue_that_was_deleted_and_made_again_is_found(transport: SqsTransport, sqs: Any) -> None:
    transport.send("mail", messages(1))
    url = sqs.get_queue_url(QueueName=transport.name("mail"))["QueueUrl"]
    sqs.delete_queue(QueueUrl=url)
    with pytest.raises(TransportRefused):
        transport.send("mail", messages(1))

    sqs.create_queue(QueueName=transport.name("mail"))

    assert transport.send("mail", messages(1)) == [None]
    assert len(received(transport)) == 1


def test_many_threads_share_a_transport(transport: SqsTransport) -> None:
    barrier = threading.Barrier(8)

    def send(_: int) -> list[ItemFailure | None]:
        barrier.wait(10)
        return transport.send("mail", messages(5))

    with ThreadPoolExecutor(8) as pool:
        answers = [answer for batch in pool.map(send, range(8)) for answer in batch]

    assert answers == [None] * 40
    assert transport.depth("mail").ready == 40


def messages(amount: int) -> list[OutgoingMessage]:
    return [OutgoingMessage(f"message {n}") for n in range(amount)]


def received(
    transport: SqsTransport,
    queue: str = "mail",
    *,
    most: int = 10,
    wait: timedelta = AT_ONCE,
    visibility: timedelta = MINUTE,
) -> list[Any]:
    return [*transport.receive(queue, most=most, wait=wait, visibility=visibility)]


def bodies_at(sqs: Any, name: str) -> Iterator[str]:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 0, "VisibilityTimeout": 60}
    while got := sqs.receive_message(**asked).get("Messages"):
        yield from (message["Body"] for message in got)


def attributes_at(sqs: Any, name: str) -> dict[str, str]:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return {name: value for name, value in found.items() if not name.startswith("ApproximateNumber")}


def depth_at(sqs: Any, name: str) -> tuple[int, int]:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return int(found[names[0]]), int(found[names[1]])


def vars_of(depth: QueueDepth) -> tuple[int, int, int]:
    return depth.ready, depth.in_flight, depth.delayed
