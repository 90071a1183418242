"""Keeps errors that the user's log handlers and filters raise away from the services that log."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import suppress
from typing import Final

LOGGERS: Final = tuple(
    f"taskharbor.{name}"
    for name in (
        "api",
        "cli",
        "client",
        "enqueuer",
        "health",
        "janitor",
        "notify",
        "outbox",
        "output",
        "runtime",
        "scheduler",
        "supervisor",
        "systemd",
        "tracing",
        "worker",
    )
)


class LogGuard:
    """Stands in place of `Logger.handle` of one logger: a record that cannot be handled is reported on stderr."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def __call__(self, record: logging.LogRecord) -> None:
        try:
            type(self._logger).handle(self._logger, record)
        except Exception:  # noqa: BLE001  of user code: a log line must not stop a heartbeat or lose an outcome
            if logging.raiseExceptions and sys.stderr is not None:  # as the handlers of the standard library do
                with suppress(OSError):
                    traceback.print_exc(file=sys.stderr)


def guard_loggers() -> None:
    """Guard the loggers of services. Services call this, and not a module on import."""
    for logger in map(logging.getLogger, LOGGERS):
        if "handle" not in vars(logger):  # the user has not replaced it, and it is not guarded yet
            logger.handle = LogGuard(logger)  # type: ignore[method-assign]


def is_replaced(logger: logging.Logger, names: frozenset[str]) -> bool:
    """Return whether the user has replaced methods of *names* of this logger."""
    own = vars(logger)
    return not (own.keys() - {"handle"} if isinstance(own.get("handle"), LogGuard) else own.keys()).isdisjoint(names)
