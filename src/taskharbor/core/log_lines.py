"""The captured log lines of an attempt, and their stored form."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskharbor.core.ids import JobId, Token

MAX_LINES: Final = 1_000
"""The number of lines of an attempt that are kept: the newest."""
MAX_LOG_BYTES: Final = 65_536
"""The size of the lines of an attempt that are kept, in their stored form."""
MAX_LINE_CHARS: Final = 4_096
"""The length of a line; a longer one is cut in its middle."""
MAX_NAME_CHARS: Final = 200
"""The length of the name of a level or a logger."""
KEPT_ATTEMPTS: Final = 10
"""The number of attempts of a job whose lines are kept: the newest."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log record of a handler: its time by the clock of the worker, its level, its logger, and its text."""

    at: datetime
    level: str
    logger: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLines:
    """The log lines of an attempt, oldest first. ``dropped`` counts the older lines that were not kept.

    ``attempt`` is not unique: it repeats after an attempt that was not counted. ``saved_at`` is set by the store.
    """

    job_id: JobId
    token: Token
    attempt: int
    worker_id: str | None
    dropped: int
    lines: tuple[LogLine, ...]
    saved_at: datetime | None = None


def newest_within(lines: Iterable[LogLine], *, max_bytes: int = MAX_LOG_BYTES) -> tuple[LogLine, ...]:
    """Return the newest of *lines* whose stored form has at most *max_bytes*."""
    kept: list[LogLine] = []
    left = max_bytes - len("[]")
    for line in reversed([*lines]):
        left -= len(_encoded(line).encode()) + len(",")
        if left < 0:
            break
        kept.append(line)
    return tuple(reversed(kept))


def encode_lines(lines: Iterable[LogLine]) -> str:
    """Return the stored form of *lines*: a JSON array."""
    return f"[{','.join(map(_encoded, lines))}]"


def decode_lines(text: str) -> tuple[LogLine, ...]:
    """Return the lines of a stored form."""
    return tuple(LogLine(datetime.fromisoformat(at), *rest) for at, *rest in json.loads(text))


def _encoded(line: LogLine) -> str:
    return _encode([line.at.isoformat(), line.level, line.logger, line.text])


_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
