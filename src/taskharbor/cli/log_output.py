"""The log of the commands that run until a signal: to stderr, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as _quote
from typing import TYPE_CHECKING, Final

from taskharbor.observability.attempt_log import duration_ms, success_texts
from taskharbor.observability.job_log import JobLogFilter
from taskharbor.observability.line_handler import LineHandler
from taskharbor.observability.tracing import trace_id_of

if TYPE_CHECKING:
    from taskharbor.observability.line_handler import Successes

LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_SHORT_ID_CHARS: Final = 12
_REPETITIVE: Final = ("botocore", "django.tasks")
"""Loggers whose INFO lines repeat where the AWS SDK found its credentials, and what a worker logs of each attempt."""
_AWS: Final = "botocore"
"""The logger of the AWS SDK. Its DEBUG lines have requests and responses: session tokens, and with STS secret keys."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"at", "level", "logger", "message", "asctime"}
"""The attributes of every record. All others were added to it, and belong into a line of JSON."""


def log_to_stderr(*, as_json: bool, level: str | None, capture_level: str | None = None) -> None:
    """Log to stderr from *level* on, by default INFO. Lines from *capture_level* on are captured elsewhere.

    An app that has configured logging keeps its configuration, except that *level* applies to TaskHarbor's lines.
    """
    names = logging.getLevelNamesMapping()
    lowest, captured = names[(level or "info").upper()], names[(capture_level or "critical").upper()]
    formatter = JsonFormatter() if as_json else TextFormatter()
    handler = LineHandler(formatter, formatter.format_successes)
    handler.addFilter(JobLogFilter())
    if captured < lowest:
        handler.setLevel(lowest)
    logging.basicConfig(level=min(lowest, captured), handlers=[handler])
    for logger in map(logging.getLogger, _REPETITIVE):
        if logger.level == logging.NOTSET and lowest > logging.DEBUG:
            logger.setLevel(max(lowest, logging.WARNING))
    if (aws := logging.getLogger(_AWS)).level == logging.NOTSET:
        aws.setLevel(logging.INFO)
    if level is not None:
        logging.getLogger("taskharbor").setLevel(level.upper())


class TextFormatter(logging.Formatter):
    """Formats a record as text: its time, level, logger and message.

    A message that does not name the job of its record, as one of a handler, begins with the last part of the job's id.
    """

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  a method of the standard library
        job_id = vars(record).get("job_id")
        if job_id is not None and str(job_id) not in record.message:
            # The first parts of the ids of jobs that were enqueued together are equal.
            record.message = f"[{str(job_id)[-_SHORT_ID_CHARS:]}] {record.message}"
        return super().formatMessage(record)

    def format_successes(self, successes: Successes) -> list[str]:
        """Return the lines of successes."""
        stamp, jobs, run_seconds = successes
        return success_texts(jobs, run_seconds, head=self.format(stamp))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with its extra attributes."""

    def __init__(self) -> None:
        super().__init__()
        self._encode = json.JSONEncoder(default=str).encode  # json.dumps would make an encoder for each line

    def format(self, record: logging.LogRecord) -> str:
        line = _head(record) | {"message": record.getMessage()}
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None}
        if record.exc_info is not None and "traceback" not in line:
            line["traceback"] = self.formatException(record.exc_info)
        return self._encode(line)

    def format_successes(self, successes: Successes) -> list[str]:
        """Return the lines of successes. Only texts that may need escapes are encoded: it takes half of the time."""
        stamp, jobs, run_seconds = successes
        head, lines = self._encode(_head(stamp))[:-1], []
        for job, seconds, text in zip(jobs, run_seconds, success_texts(jobs, run_seconds), strict=True):
            trace = trace_id_of(job)
            traced = "" if trace is None else f', "trace_id": {_quote(trace)}'
            took = "" if seconds is None else f', "duration_ms": {duration_ms(seconds)}'
            lines.append(
                f'{head}, "message": {_quote(text)}, "job_id": "{job.id}", '
                f'"type": {_quote(job.type)}, "queue": {_quote(job.queue)}, "attempt": {job.attempt_count}, '
                f'"worker": {_quote(job.worker_id or "")}{traced}, "max_attempts": {job.max_attempts}{took}}}'
            )
        return lines


def _head(record: logging.LogRecord) -> dict[str, object]:
    return {
        "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname,
        "logger": record.name,
    }
