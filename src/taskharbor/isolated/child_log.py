"""Sends the log records of a child to its worker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.log_lines import MAX_LINE_CHARS, MAX_NAME_CHARS
from taskharbor.core.text import make_storable
from taskharbor.worker.context import AttemptStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FIELDS: Final = ("name", "levelname", "levelno", "created", "pathname", "lineno", "funcName", "threadName", "process")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class ForwardHandler(logging.Handler):
    """Sends log records to the worker, whose log has the formats, the filters and the captures."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._send = send
        self.setFormatter(logging.Formatter("%(message)s"))

    def install(self, levels: Mapping[str, int]) -> None:
        """Make this the only handler, with the levels of the worker's loggers."""
        root = logging.getLogger()
        root.handlers[:] = [self]
        for name, level in levels.items():
            logging.getLogger(name or None).setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send({"log": self._fields(record)})
        except AttemptStopped:  # by a signal, which came meanwhile: the handler of the job must stop
            raise
        except OSError:
            pass  # the worker is gone, and this process is about to end
        except Exception:  # noqa: BLE001  user code in a record: report it as other handlers of the library do
            self.handleError(record)

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        fields = {name: getattr(record, name) for name in _FIELDS}
        extra = {
            name: make_storable(str(value), limit=MAX_NAME_CHARS)
            for name, value in vars(record).items()
            if name not in _STANDARD and isinstance(value, str | int | float | bool)
        }
        text = make_storable(self.format(record), limit=MAX_LINE_CHARS)
        return extra | fields | {"name": fields["name"][:MAX_NAME_CHARS], "msg": text}
