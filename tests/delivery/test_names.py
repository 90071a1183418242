"""The names of queues in SQS."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskharbor.core.errors import InvalidRequest
from taskharbor.core.request import QUEUE_PATTERN
from taskharbor.delivery.sqs import sqs_name
from taskharbor.delivery.sqs.queues import checked_prefix
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE

OURS = [DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE]
# Names of few distinct parts collide more often than arbitrary names.
PARTS = st.lists(st.sampled_from(["a", "-", ".", "dot", "_", "dead", "events", "unreadable"]), min_size=1, max_size=8)
NAMES = PARTS.map("".join).filter(lambda name: QUEUE_PATTERN.fullmatch(name) is not None)
ANY = st.from_regex(QUEUE_PATTERN, fullmatch=True)
QUEUES = NAMES | ANY | st.sampled_from([*OURS, "dead-events", "unreadable"])
PREFIXES = st.sampled_from(["", "taskharbor-", "-", "a--", "x" * 40])


@example(one="a.b-dot-c", other="a-dot-b.c", prefix="")
@example(one="a.b", other="a-dot-b", prefix="")
@given(one=QUEUES, other=QUEUES, prefix=PREFIXES)
def test_no_two_queues_share_a_name(one: str, other: str, prefix: str) -> None:
    same = sqs_name(one, prefix=prefix) == sqs_name(other, prefix=prefix)

    assert same == (one == other)


@given(queue=QUEUES, prefix=PREFIXES)
def test_every_name_is_valid_in_sqs(queue: str, prefix: str) -> None:
    name = sqs_name(queue, prefix=prefix)

    assert re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name)
    assert name.startswith(prefix)


@pytest.mark.parametrize("queue", ["mail", "high-priority", "UPPER_case", "x" * 64])
def test_a_name_without_special_characters_is_kept(queue: str) -> None:
    assert sqs_name(queue) == f"taskharbor-{queue}"


@pytest.mark.parametrize("queue", OURS)
def test_no_user_queue_gets_a_reserved_name(queue: str) -> None:
    assert QUEUE_PATTERN.fullmatch(queue) is None


@pytest.mark.parametrize("prefix", ["a.b", "ä", "x" * 41, "a b"])
def test_an_invalid_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidRequest, match="prefix"):
        checked_prefix(prefix)
