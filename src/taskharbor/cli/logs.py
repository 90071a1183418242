"""What a command that runs for long says on stderr, line by line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final

from taskharbor.worker.context import current_attempt

PLAIN: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def log_to_stderr(*, as_json: bool) -> None:
    """Show log lines from INFO on. An app that has set up logging by itself keeps what it chose."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(PLAIN))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; one that a handler logs names its job and attempt."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (attempt := current_attempt.get()) is not None:
            line |= {"job": str(attempt.job_id), "attempt": attempt.attempt}
        if record.exc_info is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)
