"""The W3C trace context: what is accepted, and what is ignored."""

from __future__ import annotations

import pytest

from taskharbor.core.trace_context import (
    ATTEMPT_TRACEPARENT,
    TraceContext,
    context_entries,
    parse_traceparent,
    received_context,
    stored_context,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
MALFORMED = [
    "",
    "00",
    PARENT[:-1],
    f"{PARENT}0",
    f"{PARENT}-00",
    f" {PARENT}",
    f"{PARENT}\n",
    PARENT.upper(),
    PARENT.replace("-", "_"),
    f"ff-{TRACE}-{SPAN}-01",
    f"0g-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE}0-{SPAN}-01",
    f"00-{TRACE}-{SPAN}-0x",
    f"01-{TRACE}-{SPAN}-01.future",
    "\u0660" * 55,
]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_traceparent_is_no_context(text: str) -> None:
    assert parse_traceparent(text) is None
    assert stored_context({"traceparent": text}) is None
    assert received_context([text], ["a=1"]) is None


def test_a_valid_traceparent_is_read_and_written_unchanged() -> None:
    context = parse_traceparent(PARENT)

    assert context == TraceContext(TRACE, SPAN, 1)
    assert context is not None
    assert context_entries(context) == {"traceparent": PARENT}


def test_a_later_version_is_stored_as_the_known_one_with_the_known_flags() -> None:
    context = received_context([f"cc-{TRACE}-{SPAN}-ff-what-comes-later"], [])

    assert context is not None
    assert context.traceparent == f"00-{TRACE}-{SPAN}-03"


def test_two_traceparents_are_ignored() -> None:
    assert received_context([PARENT, PARENT], []) is None
    assert received_context([], ["a=1"]) is None


def test_the_members_of_several_tracestates_are_joined() -> None:
    context = received_context([PARENT], ["a=1 , b@c=2", "", "d*/_-=x y"])

    assert context == TraceContext(TRACE, SPAN, 1, "a=1,b@c=2,d*/_-=x y")
    assert context is not None
    assert stored_context(context_entries(context)) == context


@pytest.mark.parametrize(
    "state",
    [
        "a",
        "a=",
        "A=1",
        "=1",
        "a=1,a=2",
        "a=ä",
        "a=b=c",
        "a=\x7f",
        "a=\n",
        ",".join(f"a{n}=1" for n in range(33)),
        ",".join(f"a{n}={'x' * 250}" for n in range(5)),
    ],
)
def test_a_malformed_tracestate_is_dropped_alone(state: str) -> None:
    assert received_context([PARENT], [state]) == TraceContext(TRACE, SPAN, 1)


def test_the_context_of_an_attempt_has_an_entry_of_its_own() -> None:
    metadata = {"traceparent": PARENT, "tracestate": "a=1", ATTEMPT_TRACEPARENT: f"00-{TRACE}-{'1' * 16}-00"}

    assert stored_context(metadata, ATTEMPT_TRACEPARENT) == TraceContext(TRACE, "1" * 16, 0)
