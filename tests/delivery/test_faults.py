"""Results of the transport when the service fails: known and unknown ones."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from taskharbor.delivery.transport import ItemFailure, TransportUnavailable
from taskharbor.testing.sqs import EndpointFaults, StaleReceipts
from tests.support.transport_contract import AT_ONCE, MINUTE, SECOND, messages, received

if TYPE_CHECKING:
    from taskharbor.delivery.sqs import SqsTransport
    from taskharbor.testing.sqs import Endpoint

NAME = "taskharbor-mail"


def test_a_lost_message_is_reported_as_sent(endpoint: Endpoint, transport: SqsTransport) -> None:
    endpoint.faults = EndpointFaults(lose=1)

    assert transport.send("mail", messages(3)) == [None] * 3

    assert endpoint.depth(NAME) == (0, 0, 0)
    assert endpoint.happened["lose"] == 3


def test_a_duplicate_is_the_same_message_twice(endpoint: Endpoint, transport: SqsTransport) -> None:
    endpoint.faults = EndpointFaults(duplicate=1)

    transport.send("mail", messages(1))

    [one, other] = received(transport)
    assert (one.message_id, one.body) == (other.message_id, other.body)
    assert one.receipt_handle != other.receipt_handle


def test_messages_may_come_in_any_order(endpoint: Endpoint, transport: SqsTransport) -> None:
    endpoint.faults = EndpointFaults(reorder=1)
    sent = messages(10)

    transport.send("mail", sent)

    got = [each.body for each in received(transport)]
    assert sorted(got) == sorted(each.body for each in sent)
    assert got != [each.body for each in sent]


def test_a_delayed_message_is_received_after_its_delay(endpoint: Endpoint, transport: SqsTransport) -> None:
    endpoint.faults = EndpointFaults(delay=1, delay_for=0.3 * SECOND)
    transport.send("mail", messages(1))

    assert received(transport) == []
    assert endpoint.depth(NAME) == (0, 0, 1)
    assert len(received(transport, wait=5 * SECOND)) == 1


def test_a_send_whose_reply_is_lost_is_unknown(endpoint: Endpoint, transport: SqsTransport) -> None:
    transport.depth("mail")
    endpoint.faults = EndpointFaults(cut=1)

    with pytest.raises(TransportUnavailable) as caught:
        transport.send("mail", messages(1))

    assert caught.value.is_unknown
    assert endpoint.depth(NAME) == (1, 0, 0)
    assert endpoint.requests["SendMessageBatch"] == 1  # the caller decides whether to send again


def test_a_send_without_a_reply_times_out(endpoint: Endpoint, transport: SqsTransport) -> None:
    endpoint.faults = EndpointFaults(stall=1)
    start = time.monotonic()

    with pytest.raises(TransportUnavailable) as caught:
        transport.send("mail", messages(1))

    assert time.monotonic() - start < 5
    assert caught.value.is_unknown


@pytest.mark.parametrize("code", ["ThrottlingException", "RequestThrottled", "OverLimit"])
def test_a_throttled_send_is_known_to_be_unsent(endpoint: Endpoint, transport: SqsTransport, code: str) -> None:
    endpoint.faults = EndpointFaults(errors={code: 1})

    with pytest.raises(TransportUnavailable, match="throttles requests") as caught:
        transport.send("mail", messages(1))

    assert (caught.value.is_unknown, caught.value.code) == (False, code)
    assert endpoint.depth(NAME) == (0, 0, 0)
    assert endpoint.requests["SendMessageBatch"] == 1


@pytest.mark.parametrize("code", ["InternalFailure", "ServiceUnavailable"])
def test_a_server_error_is_reported_as_unavailable(endpoint: Endpoint, transport: SqsTransport, code: str) -> None:
    endpoint.faults = EndpointFaults(errors={code: 1})

    with pytest.raises(TransportUnavailable, match=code) as caught:
        transport.receive("mail", most=1, wait=AT_ONCE, visibility=MINUTE)

    assert caught.value.is_unknown


def test_results_of_earlier_batches_are_kept(endpoint: Endpoint, transport: SqsTransport) -> None:
    endpoint.faults = EndpointFaults(errors={"ThrottlingException": 0.5})
    answers: list[ItemFailure | None] = []
    while not answers:  # seeded: the same run each time
        with suppress(TransportUnavailable):
            answers = transport.send("mail", messages(60))

    sent = answers.count(None)
    assert sent in range(10, 60, 10)
    assert answers[:sent] == [None] * sent
    assert [isinstance(answer, ItemFailure) and not answer.is_unknown for answer in answers[sent:]] == [True] * (
        60 - sent
    )
    assert endpoint.depth(NAME) == (sent, 0, 0)


def test_a_batch_may_fail_in_part(endpoint: Endpoint, transport: SqsTransport) -> None:
    endpoint.faults = EndpointFaults(reject=0.5)

    answers = transport.send("mail", messages(10))

    failed = [answer for answer in answers if answer is not None]
    assert 0 < len(failed) < 10
    assert {(each.code, each.is_permanent) for each in failed} == {("InternalError", False)}
    assert endpoint.depth(NAME) == (10 - len(failed), 0, 0)


def test_an_entry_missing_in_the_reply_is_unknown(endpoint: Endpoint, transport: SqsTransport) -> None:
    endpoint.faults = EndpointFaults(omit=0.5)

    answers = transport.send("mail", messages(10))

    silent = [answer for answer in answers if answer is not None]
    assert 0 < len(silent) < 10
    assert all(each.is_unknown and not each.is_permanent for each in silent)
    assert endpoint.depth(NAME) == (10, 0, 0)


def test_a_delete_whose_reply_is_lost_is_retried_once(endpoint: Endpoint, transport: SqsTransport) -> None:
    transport.send("mail", messages(1))
    [got] = received(transport)
    endpoint.faults = EndpointFaults(cut=1, operations=frozenset({"DeleteMessageBatch"}))

    with pytest.raises(TransportUnavailable):
        transport.delete("mail", [got.receipt_handle])

    assert endpoint.requests["DeleteMessageBatch"] == 2
    assert endpoint.depth(NAME) == (0, 0, 0)


@pytest.mark.parametrize("stale", StaleReceipts)
def test_a_stale_receipt_counts_as_success_for_every_error_code(
    endpoint: Endpoint, transport: SqsTransport, stale: StaleReceipts
) -> None:
    endpoint.faults = EndpointFaults(stale=stale)
    transport.send("mail", messages(3))
    [gone, visible, superseded] = received(transport)
    transport.delete("mail", [gone.receipt_handle])
    transport.change_visibility("mail", [(superseded.receipt_handle, AT_ONCE)])
    received(transport)
    transport.change_visibility("mail", [(visible.receipt_handle, AT_ONCE)])
    receipts = [each.receipt_handle for each in (gone, visible, superseded)]

    hidden = transport.change_visibility("mail", [(receipt, MINUTE) for receipt in receipts])
    deleted = transport.delete("mail", [*receipts, "nonsense"])

    assert (hidden, deleted) == ([None] * 3, [None] * 4)
    assert endpoint.happened["stale"] >= 4


def test_hiding_a_message_beyond_its_limit_is_reported(endpoint: Endpoint, transport: SqsTransport) -> None:
    transport.send("mail", messages(1))
    [got] = received(transport)
    endpoint.advance(timedelta(seconds=30))

    [answer] = transport.change_visibility("mail", [(got.receipt_handle, timedelta(hours=12))])

    assert answer is not None
    assert (answer.code, answer.is_permanent) == ("InvalidParameterValue", True)


def test_an_outage_is_reported_at_once_and_ends_with_the_service(endpoint: Endpoint, transport: SqsTransport) -> None:
    transport.send("mail", messages(1))
    [held] = received(transport)
    transport.send("mail", messages(1))
    endpoint.go_away()

    start = time.monotonic()
    with pytest.raises(TransportUnavailable, match=str(endpoint.port)) as caught:
        transport.send("mail", messages(1))
    took = time.monotonic() - start
    endpoint.come_back()

    assert took < 4
    assert not caught.value.is_unknown
    assert transport.delete("mail", [held.receipt_handle]) == [None]
    assert endpoint.depth(NAME) == (1, 0, 0)


def test_receipts_from_before_a_data_loss_count_as_success(endpoint: Endpoint, transport: SqsTransport) -> None:
    transport.send("mail", messages(1))
    [held] = received(transport)

    endpoint.go_away()
    endpoint.come_back(keep=False)

    assert transport.change_visibility("mail", [(held.receipt_handle, MINUTE)]) == [None]
    assert transport.delete("mail", [held.receipt_handle]) == [None]
    assert endpoint.depth(NAME) == (0, 0, 0)
