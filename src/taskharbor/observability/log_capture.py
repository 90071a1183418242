"""Capture of the log lines of a handler: the newest of each attempt, within limits."""

from __future__ import annotations

import logging
import threading
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.failure import redacted_text
from taskharbor.core.log_lines import (
    MAX_LINE_CHARS,
    MAX_LINES,
    MAX_LOG_BYTES,
    MAX_NAME_CHARS,
    LogLine,
    newest_within,
)
from taskharbor.core.text import make_storable
from taskharbor.observability.job_log import current_attempt

if TYPE_CHECKING:
    from taskharbor.core.failure import Redact

CAPTURE_LEVEL: Final = "INFO"
"""The lowest level that is captured unless the user sets another."""
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class LogCapture:
    """The captured lines of one attempt. Its handler may log from several threads.

    Only their number and length are limited as they come: most lines of a handler that logs a lot are dropped.
    """

    __slots__ = ("_chars", "_count", "_lines", "_lock", "level", "owner")

    def __init__(self, owner: CaptureHandler, level: int) -> None:
        self.owner = owner
        self.level = level
        self._lock = threading.Lock()
        self._lines: deque[tuple[float, str, str, str]] = deque()
        self._chars = self._count = 0

    def add(self, record: logging.LogRecord, text: str) -> None:
        """Keep a line, and drop older ones that exceed the limits."""
        if len(text) > MAX_LINE_CHARS:
            text = _storable(text)
        with self._lock:
            self._count += 1
            self._lines.append((record.created, record.levelname, record.name, text))
            self._chars += len(text)
            while len(self._lines) > MAX_LINES or self._chars > MAX_LOG_BYTES:
                self._chars -= len(self._lines.popleft()[-1])

    def take(self, redact: Redact | None) -> tuple[tuple[LogLine, ...], int]:
        """Return the kept lines as *redact* returns their texts, and the number of dropped ones."""
        with self._lock:
            kept, count = [*self._lines], self._count
        lines = newest_within(_line(*each, redact) for each in kept)
        return lines, count - len(lines)


class CaptureHandler(logging.Handler):
    """Adds the records that handlers of one worker log to the captures of their attempts.

    It stands on the root logger while the worker runs. It is no handler for other records: if there is none besides
    it, they go where they would go without it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))

    def createLock(self) -> None:  # noqa: N802  a method of the standard library
        """Use no lock: each capture has its own, so that jobs do not wait for each other."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        attempt = current_attempt.get()
        if attempt is not None and not attempt.has_ended:
            capture = attempt.capture
            if capture is not None and capture.owner is self and record.levelno >= capture.level:
                capture.add(record, self._text(record))
        self._pass_to_last_resort(record)

    def _text(self, record: logging.LogRecord) -> str:
        try:
            has_more = record.exc_info or record.exc_text or record.stack_info
            return self.format(record) if has_more else record.getMessage()  # in a third of the time
        except Exception as error:  # noqa: BLE001  user code: other handlers report it, and the job must not fail
            return f"(not shown: formatting raised {type(error).__name__})"

    def _pass_to_last_resort(self, record: logging.LogRecord) -> None:
        last = logging.lastResort
        if last is None or record.levelno < last.level:
            return
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(type(each) is not CaptureHandler for each in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        if next(each for each in logging.root.handlers if type(each) is CaptureHandler) is self:
            last.handle(record)


def capture_level(option: bool | str | None, default: int | None = None) -> int | None:  # noqa: FBT001  the value of an option
    """Return the level from which on lines are captured, or None. *default* applies if *option* is None.

    >>> capture_level(True), capture_level("debug"), capture_level(False, 10), capture_level(None, 10)
    (20, 10, None, 10)
    """
    if option is None:
        return default
    if option is False:
        return None
    if option is True:
        return default or capture_level(CAPTURE_LEVEL)
    if str(option).upper() not in _LEVELS:
        rule = f"must be true, false or one of {', '.join(_LEVELS)}"
        raise UsageError(Problem(field="capture_logs", value=repr(option), rule=rule))
    return logging.getLevelNamesMapping()[str(option).upper()]


def _line(created: float, level: str, logger: str, text: str, redact: Redact | None) -> LogLine:
    shown = text if redact is None else redacted_text(redact, text)
    level, logger = (make_storable(str(each), limit=MAX_NAME_CHARS) for each in (level, logger))
    return LogLine(datetime.fromtimestamp(created, UTC), level, logger, _storable(shown))


def _storable(text: str) -> str:
    return make_storable(text, limit=MAX_LINE_CHARS)
