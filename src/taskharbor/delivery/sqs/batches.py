"""Batches: cut to what SQS takes at once, and answered item by item."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from taskharbor.delivery.sqs.error_codes import THROTTLED, short_code
from taskharbor.delivery.transport import BATCH_LIMIT, ItemFailure, TransportRefused, TransportUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from taskharbor.delivery.transport import OutgoingMessage

    Entry = Mapping[str, object]

MAX_BATCH_BYTES: Final = 262_144
"""Of a batch. AWS takes four times as much by now; other endpoints do not yet."""

MAX_BODY: Final = 1_048_576
"""Bytes of a message, with its attributes."""

_MAX_ATTRIBUTES: Final = 10
# What SQS does not carry. One such character would have the whole batch refused.
_ILLEGAL: Final = re.compile("[^\\t\\n\\r\\u0020-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
_ATTRIBUTE: Final = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def entry(message: OutgoingMessage) -> dict[str, object]:
    """Return the message as SQS takes it. Attributes that it would not take are left out: nothing depends on them."""
    if not message.attributes:
        return {"MessageBody": message.body}
    taken = [(name, value) for name, value in message.attributes.items() if _is_attribute(name, value)]
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in taken[:_MAX_ATTRIBUTES]}
    return {"MessageBody": message.body, "MessageAttributes": attributes}


def size(message: OutgoingMessage) -> int:
    """Return how many bytes SQS counts, or a little more."""
    attributes = sum(len(name) + len("String") + len(value.encode()) for name, value in message.attributes.items())
    return len(message.body.encode("utf-8", "surrogatepass")) + attributes


def rejection_of(message: OutgoingMessage) -> ItemFailure | None:
    """Return why SQS would not take the message, if so: said here, it does not take nine others with it."""
    if not message.body:
        return ItemFailure("InvalidMessageContents", "a message must not be empty", is_permanent=True)
    if found := _ILLEGAL.search(message.body):
        return ItemFailure(
            "InvalidMessageContents", f"SQS does not carry the character {found[0]!r}", is_permanent=True
        )
    if size(message) > MAX_BODY:
        why = f"{size(message):,} bytes are more than the {MAX_BODY:,} that SQS carries"
        return ItemFailure("InvalidParameterValue", why, is_permanent=True)
    return None


def batch_ranges(sizes: Sequence[int]) -> Iterator[range]:
    """Yield the places of items that can go together, in order.

    >>> list(batch_ranges([1] * 12))
    [range(0, 10), range(10, 12)]
    >>> list(batch_ranges([200_000, 200_000, 1]))
    [range(0, 1), range(1, 3)]
    """
    start = total = 0
    for place, bytes_more in enumerate(sizes):
        if place > start and (place - start == BATCH_LIMIT or total + bytes_more > MAX_BATCH_BYTES):
            yield range(start, place)
            start, total = place, 0
        total += bytes_more
    if start < len(sizes):
        yield range(start, len(sizes))


def call_in_batches(
    entries: Sequence[Entry],
    sizes: Sequence[int],
    call: Callable[[Sequence[Entry]], Mapping[str, Any]],
) -> list[ItemFailure | None]:
    """Hand *entries* over batch by batch. Where a later batch fails, what is known of the earlier ones is kept."""
    answers: list[ItemFailure | None] = []
    for places in batch_ranges(sizes):
        try:
            answer = call([{"Id": str(place - places.start), **entries[place]} for place in places])
        except (TransportRefused, TransportUnavailable) as error:
            if all(isinstance(known, ItemFailure) for known in answers):
                raise
            answers += [_failed_together(error)] * len(places)
            untried = ItemFailure(error.code or "NotTried", str(error), is_permanent=False)
            return answers + [untried] * (len(entries) - len(answers))
        answers += _read(answer, len(places))
    return answers


def _read(answer: Mapping[str, Any], count: int) -> list[ItemFailure | None]:
    """Return the answer for each of *count* entries. Of one that is not mentioned nothing is known."""
    silent = ItemFailure("Unanswered", "the answer does not mention this entry", is_permanent=False, is_unknown=True)
    known: dict[str, ItemFailure | None] = {each["Id"]: None for each in answer.get("Successful", ())}
    for each in answer.get("Failed", ()):
        code, is_ours = short_code(each.get("Code", "")), bool(each.get("SenderFault"))
        is_unknown = not is_ours and code not in THROTTLED
        known[each["Id"]] = ItemFailure(code, each.get("Message") or code, is_permanent=is_ours, is_unknown=is_unknown)
    return [known.get(str(place), silent) for place in range(count)]


def _failed_together(error: TransportRefused | TransportUnavailable) -> ItemFailure:
    is_unknown = isinstance(error, TransportUnavailable) and error.is_unknown
    return ItemFailure(error.code or type(error).__name__, str(error), is_permanent=False, is_unknown=is_unknown)


def _is_attribute(name: str, value: str) -> bool:
    return bool(_ATTRIBUTE.fullmatch(name)) and bool(value) and _ILLEGAL.search(value) is None
