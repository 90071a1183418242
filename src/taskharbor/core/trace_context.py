"""The W3C trace context of a job: the entries ``traceparent`` and ``tracestate`` of its metadata.

They are read and checked here without OpenTelemetry, so that a process without it keeps them, too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from taskharbor.core.request import MAX_METADATA_VALUE_CHARS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
ATTEMPT_TRACEPARENT: Final = "attempt_traceparent"
"""The metadata entry with the context of the newest attempt that ended without a success."""
MAX_MEMBERS: Final = 32
_PARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KNOWN_FLAGS: Final = 0x03  # sampled, and random trace id; the others may get another meaning
_KEY: Final = r"[a-z0-9][a-z0-9_*/@-]{0,255}"
_MEMBER: Final = re.compile(rf"{_KEY}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{{0,255}}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


class TraceContext(NamedTuple):
    """The ids of a span in lower-case hexadecimal, its flags, and the ``tracestate``, empty if there is none."""

    trace_id: str
    span_id: str
    flags: int
    state: str = ""

    @property
    def traceparent(self) -> str:
        """The context as a header of version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(text: str | None, state: str = "") -> TraceContext | None:
    """Return the context in a ``traceparent`` header, or None if it is malformed.

    >>> parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").trace_id
    '0af7651916cd43dd8448eb211c80319c'
    """
    found = None if text is None else _PARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "00" and rest is not None:
        return None
    return TraceContext(trace_id, span_id, int(flags, 16) & _KNOWN_FLAGS, state)


def stored_context(metadata: Mapping[str, str], entry: str = TRACEPARENT) -> TraceContext | None:
    """Return the context that *metadata* holds; None if there is none, or one that is malformed."""
    parent = metadata.get(entry)
    if parent is None:
        return None
    return parse_traceparent(parent, metadata.get(TRACESTATE, "") if entry == TRACEPARENT else "")


def context_entries(context: TraceContext) -> dict[str, str]:
    """Return the metadata entries that hold *context*."""
    return {TRACEPARENT: context.traceparent, **({TRACESTATE: context.state} if context.state else {})}


def with_context(metadata: Mapping[str, str], entries: Mapping[str, str]) -> Mapping[str, str]:
    """Return *metadata* with another context: *entries* of `context_entries`, or none."""
    if not metadata:
        return entries  # the same object for all jobs of a bulk enqueue, so that it is encoded once
    others = {key: value for key, value in metadata.items() if key not in {TRACEPARENT, TRACESTATE}}
    return {**others, **entries}


def received_context(parents: Sequence[str], states: Sequence[str]) -> TraceContext | None:
    """Return the context in the headers ``traceparent`` and ``tracestate`` of a request.

    As the recommendation says, a malformed or repeated ``traceparent`` is ignored together with ``tracestate``. A
    malformed ``tracestate`` is ignored alone.
    """
    if len(parents) != 1:
        return None
    return parse_traceparent(parents[0], _checked_state(states))


def _checked_state(states: Sequence[str]) -> str:
    members = [member for each in states for part in each.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    text = ",".join(members)
    is_valid = (
        len(members) <= MAX_MEMBERS
        and len(keys) == len(members)
        and len(text) <= MAX_METADATA_VALUE_CHARS
        and all(map(_MEMBER.fullmatch, members))
    )
    return text if is_valid else ""
