"""The log handler of the command line, which writes the lines of many attempts together."""

from __future__ import annotations

import logging
from bisect import bisect_right
from itertools import accumulate
from types import FunctionType
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

from taskharbor.observability.job_log import JobLogFilter
from taskharbor.observability.log_capture import CaptureHandler
from taskharbor.observability.log_guard import is_replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from taskharbor.core.model import Job

Successes: TypeAlias = "tuple[logging.LogRecord, Sequence[Job], Sequence[float | None]]"
"""Lines about attempts that succeeded: their stamp, their jobs, and how many seconds the handlers ran.

The stamp is a record without a message: of the same logger, level and time.
"""
MAX_WRITE_BYTES: Final = 4_096
"""PIPE_BUF of Linux: a longer write into a pipe may be torn apart by lines of another process."""
_MAX_CHAR_BYTES: Final = 10
r"""Of a character that is not ASCII: ``\U0001f600``, if the stream cannot encode it."""
_PATCHED: Final = (
    (logging.Logger, ("makeRecord", "handle", "filter", "callHandlers")),
    (logging.Handler, ("handle", "format", "filter")),
    (logging.StreamHandler, ("emit", "flush")),
    (logging.Formatter, ("format", "formatTime", "formatMessage")),
    (logging.LogRecord, ("__init__", "getMessage")),
)
"""The methods that a record passes through. Error trackers and tracers replace some, to see each record."""
_NAMES: Final = frozenset(name for _, names in _PATCHED for name in names)


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes to stderr: single records, and the lines of a batch in as few writes as stay atomic in a pipe.

    *format_successes* returns the lines that *formatter* returns for the records of successes. No records are made for
    them: a record takes 4 µs, a line 0.7 µs.
    """

    def __init__(self, formatter: logging.Formatter, format_successes: Callable[[Successes], list[str]]) -> None:
        super().__init__()
        self.formatter = self._formatter = formatter
        self._format_successes = format_successes

    @property
    def takes_batches(self) -> bool:
        """Whether the user has changed nothing about it except its level and its stream."""
        return (
            self.formatter is self._formatter
            # The filter of the command line changes no record that names its job, and every line of a batch does.
            and all(type(each) is JobLogFilter for each in self.filters)
            and vars(self).keys().isdisjoint(_NAMES)
        )

    def write_batch(self, batch: Iterable[Successes | logging.LogRecord]) -> None:
        """Write what `handle` would write for each record, in the same order."""
        self.acquire()
        try:
            self._write_in_parts(self._lines(batch))
        finally:
            self.release()

    def _lines(self, batch: Iterable[Successes | logging.LogRecord]) -> list[str]:
        """Return the lines of *batch*, without their ends."""
        lines: list[str] = []
        for entry in batch:
            if isinstance(entry, tuple):
                if entry[0].levelno >= self.level:
                    lines += self._format_successes(entry)
            elif (line := self._formatted(entry)) is not None:
                lines.append(line)
        return lines

    def _formatted(self, entry: logging.LogRecord) -> str | None:
        if entry.levelno < self.level:
            return None
        try:
            return self._formatter.format(entry)
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001  as in StreamHandler: a line that cannot be formatted is reported and left out
            self.handleError(entry)
            return None

    def _write_in_parts(self, lines: Sequence[str]) -> None:
        ends = [*accumulate([(1 if line.isascii() else _MAX_CHAR_BYTES) * len(line) + 1 for line in lines], initial=0)]
        start = 0
        while start < len(lines):
            stop = max(bisect_right(ends, ends[start] + MAX_WRITE_BYTES) - 1, start + 1)
            self._write(lines[start:stop])
            start = stop

    def _write(self, lines: Sequence[str]) -> None:
        try:
            self.stream.write(self.terminator.join([*lines, ""]))
            self.flush()
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001  as in StreamHandler: a broken pipe or a full disk stops no job
            if isinstance(error, UnicodeError) and len(lines) > 1:  # nothing was written, and one line is the cause
                for line in lines:
                    self._write([line])
            else:
                self.handleError(logging.makeLogRecord({"msg": lines[0]}))


def line_handlers(log: logging.Logger) -> list[LineHandler] | None:
    """Return the handlers that would get a record of *log*, if all of them take batches and nothing else sees records.

    Otherwise None: the user's handlers, filters, record factory, logger class and patches must get each record.
    """
    if (
        type(log) is not logging.Logger
        or log.filters
        or logging.getLogRecordFactory() is not logging.LogRecord
        or is_replaced(log, _NAMES)
        or not all(_is_standard(getattr(owner, name)) for owner, names in _PATCHED for name in names)
    ):
        return None
    found: list[LineHandler] = []
    logger: logging.Logger | None = log
    while logger is not None:
        for handler in logger.handlers:
            if type(handler) is CaptureHandler:  # it ignores what a handler of a job does not log
                continue
            if type(handler) is not LineHandler or not handler.takes_batches:
                return None
            found.append(handler)
        logger = logger.parent if logger.propagate else None
    return found or None


def _is_standard(method: object) -> bool:
    # A wrapper may copy or pass on the name and the module of what it wraps, but not both its type and its globals.
    return type(method) is FunctionType and method.__globals__ is vars(logging)
