"""Splitting calls into batches and combining their results."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.delivery.sqs.batches import MAX_BATCH_BYTES, batch_ranges, call_in_batches
from taskharbor.delivery.transport import ItemFailure, TransportRefused, TransportUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@given(st.lists(st.integers(1, MAX_BATCH_BYTES + 10), max_size=50))
def test_batches_stay_within_limits_and_contain_every_item(sizes: list[int]) -> None:
    batches = list(batch_ranges(sizes))

    assert list(chain.from_iterable(batches)) == list(range(len(sizes)))
    assert all(len(places) <= 10 for places in batches)
    assert all(len(places) == 1 or sum(sizes[n] for n in places) <= MAX_BATCH_BYTES for places in batches)


def test_results_are_in_the_order_of_the_entries() -> None:
    answers = answered(12, lambda entries: {"Successful": entries[::-1][1:], "Failed": [refused(entries[-1])]})

    assert [n for n, answer in enumerate(answers) if answer is not None] == [9, 11]
    assert answers[9] == ItemFailure("InvalidParameterValue", "no", is_permanent=True)


def test_a_throttled_entry_was_not_sent_and_another_failure_is_unknown() -> None:
    codes = ["ThrottlingException", "AWS.SimpleQueueService.RequestThrottled", "InternalError"]
    failed = [{"Id": str(n), "Code": code, "SenderFault": False} for n, code in enumerate(codes)]

    answers = answered(3, lambda _: {"Failed": failed})

    assert [answer is not None and answer.is_unknown for answer in answers] == [False, False, True]


@pytest.mark.parametrize(
    ("error", "is_unknown"),
    [
        (TransportUnavailable("cut"), True),
        (TransportUnavailable("throttled", code="ThrottlingException", is_unknown=False), False),
        (TransportRefused("denied", "allow it", code="AccessDenied"), False),
    ],
)
def test_a_failed_batch_keeps_earlier_results_and_skips_later_batches(error: Exception, is_unknown: bool) -> None:
    batches = 0

    def call(entries: Sequence[Any]) -> Mapping[str, Any]:
        nonlocal batches
        batches += 1
        if batches == 2:
            raise error
        return {"Successful": entries}

    answers = answered(30, call)

    assert batches == 2
    assert answers[:10] == [None] * 10
    assert [answer is not None and answer.is_unknown for answer in answers[10:]] == [is_unknown] * 10 + [False] * 10
    assert all(answer is not None and not answer.is_permanent for answer in answers[10:])


def test_an_error_is_raised_if_no_item_succeeded() -> None:
    def call(entries: Sequence[Any]) -> Mapping[str, Any]:
        if entries[0]["n"] == 0:
            return {"Failed": [refused(each) for each in entries]}
        raise TransportUnavailable("cut")

    with pytest.raises(TransportUnavailable):
        answered(20, call)


def answered(amount: int, call: Callable[[Sequence[Any]], Mapping[str, Any]]) -> list[ItemFailure | None]:
    return call_in_batches([{"n": n} for n in range(amount)], [1] * amount, call)


def refused(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"Id": entry["Id"], "Code": "InvalidParameterValue", "Message": "no", "SenderFault": True}
