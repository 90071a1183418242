"""New jobs as rows in the binary format of COPY.

psycopg looks up how to write each value of each row. Most jobs of a batch differ in id, payload and key only, so that
here the bytes of their other columns are made once: a row takes half the time.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from struct import Struct
from typing import TYPE_CHECKING, Final, LiteralString, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from taskharbor.core.model import NewJob

SIMPLE_COLUMNS: Final[LiteralString] = (
    "id, payload, idempotency_key, scheduled_for, type, queue, priority, created_at, max_attempts"
)
COLUMNS: Final[LiteralString] = f"{SIMPLE_COLUMNS}, timeout, metadata"


def copy_rows(jobs: Sequence[NewJob], now: datetime, *, is_simple: bool) -> Iterator[bytes]:
    """Yield the data of a COPY in pieces. If it *is_simple*, to all columns but the last two."""
    start = _SIMPLE_START if is_simple else _START
    parts, room = [_HEADER], _PIECE_BYTES
    due, metadata, last, known = b"", b"", cast("NewJob | None", None), dict[tuple[object, ...], bytes]()
    for job in jobs:
        if last is None or job.scheduled_for is not last.scheduled_for or job.delay is not last.delay:
            due = _TIME(8, _microseconds(job.scheduled_for or now + job.delay))
        if not is_simple and (last is None or job.metadata is not last.metadata):  # often one object for all jobs
            metadata = _json(job.metadata)
        last = job
        values = (job.type, job.queue, job.priority, job.created_at, job.max_attempts, job.timeout)
        if (common := known.get(values)) is None:
            common = known[values] = _common(job, is_simple=is_simple)
        payload, key = job.payload, job.idempotency_key
        size = len(payload)
        key_part = _NULL if key is None else _text(key)
        parts += start, job.id.int.to_bytes(16), size.to_bytes(4), payload, key_part, due, common
        if not is_simple:
            parts.append(metadata)
        room -= size + _ROW_BYTES
        if room < 0:
            yield b"".join(parts)
            parts, room = [], _PIECE_BYTES
    yield b"".join([*parts, _TRAILER])


def _common(job: NewJob, *, is_simple: bool) -> bytes:
    """Return the fields that most jobs of a batch have in common."""
    numbers = _NUMBERS(4, job.priority, 8, _microseconds(job.created_at), 4, job.max_attempts)
    simple, span = _text(job.type) + _text(job.queue) + numbers, job.timeout
    if is_simple:
        return simple
    if span is None:
        return simple + _NULL
    return simple + _INTERVAL(16, span.seconds * 1_000_000 + span.microseconds, span.days, 0)


def _json(metadata: Mapping[str, str]) -> bytes:
    text = json.dumps(dict(metadata)).encode() if metadata else b"{}"
    return _JSONB(len(text) + 1, 1) + text


def _text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(4) + data


def _microseconds(when: datetime) -> int:
    since = when - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


# A row is the number of its fields, then the size and the bytes of each. The size of NULL is -1.
_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER: Final = b"\xff\xff"
_SIMPLE_START: Final = Struct("!hi").pack(9, 16)  # and the size of the id
_START: Final = Struct("!hi").pack(11, 16)
_NULL: Final = b"\xff\xff\xff\xff"
_TIME: Final = Struct("!iq").pack
_NUMBERS: Final = Struct("!iiiqii").pack
_INTERVAL: Final = Struct("!iqii").pack
_JSONB: Final = Struct("!ib").pack  # its bytes begin with a version
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_PIECE_BYTES: Final = 32 * 1024  # as psycopg does: libpq is slower with more
_ROW_BYTES: Final = 100
