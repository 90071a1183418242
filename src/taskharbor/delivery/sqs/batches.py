"""Split calls into batches that SQS accepts, and read the result of each item."""

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
"""The size limit of a batch. AWS allows four times as much; other endpoints do not."""

MAX_MESSAGE_BYTES: Final = 1_048_576
"""The size limit of a message with its attributes."""

_MAX_ATTRIBUTES: Final = 10
# Characters that SQS does not allow. One of them would fail the whole batch.
_ILLEGAL: Final = re.compile("[^\\t\\n\\r\\u0020-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
_ATTRIBUTE: Final = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def entry(message: OutgoingMessage) -> dict[str, object]:
    """Return the message as an SQS batch entry. Invalid attributes are left out: nothing depends on them."""
    if not message.attributes:
        return {"MessageBody": message.body}
    valid = [(name, value) for name, value in message.attributes.items() if _is_attribute(name, value)]
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in valid[:_MAX_ATTRIBUTES]}
    return {"MessageBody": message.body, "MessageAttributes": attributes}


def size(message: OutgoingMessage) -> int:
    """Return the size that SQS counts, or slightly more."""
    attributes = sum(len(name) + len("String") + len(value.encode()) for name, value in message.attributes.items())
    return len(message.body.encode("utf-8", "surrogatepass")) + attributes


def rejection_of(message: OutgoingMessage) -> ItemFailure | None:
    """Return why SQS would reject the message, or None. Checked here so that it does not fail its whole batch."""
    if not message.body:
        return ItemFailure("InvalidMessageContents", "the message is empty", is_permanent=True)
    if found := _ILLEGAL.search(message.body):
        return ItemFailure(
            "InvalidMessageContents", f"SQS does not allow the character {found[0]!r}", is_permanent=True
        )
    if size(message) > MAX_MESSAGE_BYTES:
        reason = f"{size(message):,} bytes exceed the limit of {MAX_MESSAGE_BYTES:,} of SQS"
        return ItemFailure("InvalidParameterValue", reason, is_permanent=True)
    return None


def batch_ranges(sizes: Sequence[int]) -> Iterator[range]:
    """Yield the index ranges of batches within the limits of SQS.

    >>> list(batch_ranges([1] * 12))
    [range(0, 10), range(10, 12)]
    >>> list(batch_ranges([200_000, 200_000, 1]))
    [range(0, 1), range(1, 3)]
    """
    start = total = 0
    for index, item_bytes in enumerate(sizes):
        if index > start and (index - start == BATCH_LIMIT or total + item_bytes > MAX_BATCH_BYTES):
            yield range(start, index)
            start, total = index, 0
        total += item_bytes
    if start < len(sizes):
        yield range(start, len(sizes))


def call_in_batches(
    entries: Sequence[Entry],
    sizes: Sequence[int],
    call: Callable[[Sequence[Entry]], Mapping[str, Any]],
) -> list[ItemFailure | None]:
    """Call SQS batch by batch. If a later batch fails, the results of the earlier ones are kept."""
    answers: list[ItemFailure | None] = []
    for indexes in batch_ranges(sizes):
        try:
            answer = call([{"Id": str(index - indexes.start), **entries[index]} for index in indexes])
        except (TransportRefused, TransportUnavailable) as error:
            if all(isinstance(known, ItemFailure) for known in answers):
                raise
            answers += [_batch_failure(error)] * len(indexes)
            untried = ItemFailure(error.code or "NotTried", str(error), is_permanent=False)
            return answers + [untried] * (len(entries) - len(answers))
        answers += _results(answer, len(indexes))
    return answers


def _results(answer: Mapping[str, Any], count: int) -> list[ItemFailure | None]:
    """Return the result of each of *count* entries. An entry that the reply omits is unknown."""
    omitted = ItemFailure("Unanswered", "the reply does not mention this entry", is_permanent=False, is_unknown=True)
    known: dict[str, ItemFailure | None] = {each["Id"]: None for each in answer.get("Successful", ())}
    for each in answer.get("Failed", ()):
        code, is_permanent = short_code(each.get("Code", "")), bool(each.get("SenderFault"))
        is_unknown = not is_permanent and code not in THROTTLED
        reason = each.get("Message") or code
        known[each["Id"]] = ItemFailure(code, reason, is_permanent=is_permanent, is_unknown=is_unknown)
    return [known.get(str(index), omitted) for index in range(count)]


def _batch_failure(error: TransportRefused | TransportUnavailable) -> ItemFailure:
    is_unknown = isinstance(error, TransportUnavailable) and error.is_unknown
    return ItemFailure(error.code or type(error).__name__, str(error), is_permanent=False, is_unknown=is_unknown)


def _is_attribute(name: str, value: str) -> bool:
    return bool(_ATTRIBUTE.fullmatch(name)) and bool(value) and _ILLEGAL.search(value) is None
