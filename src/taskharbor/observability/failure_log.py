"""Log lines about what keeps failing: outages of the store and of the queue service, and unexpected errors."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from traceback import format_exception_only
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import TaskHarborError
from taskharbor.core.hooks import OutageBegan, OutageEnded
from taskharbor.core.text import duration_text, one_line
from taskharbor.observability.hook_caller import NO_HOOKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from logging import Logger

    from taskharbor.observability.hook_caller import HookCaller

STORE: Final = "store"
QUEUE_SERVICE: Final = "queue service"
COUNT_SECONDS: Final = 30.0
"""How often something that keeps failing is logged."""
QUIET_SECONDS: Final[Mapping[str, float]] = MappingProxyType({STORE: 2.0, QUEUE_SERVICE: 0.5})
"""How long no call has failed when an outage is over. Calls that began during the outage fail after its end, and
a store may accept reads and fail at writes. The queue service may not be called for long after it is back.
"""
MAX_CAUSE_CHARS: Final = 500


class FailureLog:
    """Logs a failure when it begins, while it lasts as a count every half minute, and the end of an outage.

    The loops of a process share one, so that an outage is logged once and not by each loop at each try. Hooks are
    called when an outage begins and when it has ended.
    """

    def __init__(
        self, log: Logger, monotonic: Callable[[], float] = time.monotonic, *, call_hooks: HookCaller = NO_HOOKS
    ) -> None:
        self._log = log
        self._call_hooks = call_hooks
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._outages: dict[str, _Outage] = {}
        self._errors: dict[str, _RepeatedError] = {}

    def unavailable(self, service: str, error: TaskHarborError, *, meanwhile: str = "retrying") -> None:
        """Log that a call failed because *service* is unavailable. *meanwhile* says what this process does."""
        now, cause = self._monotonic(), _cause(error)
        with self._lock:
            outage = self._outages.get(service)
            if outage is None:
                self._outages[service] = _Outage(began_at=now, logged_at=now, failed_at=now)
                line: tuple[object, ...] = ("%s unavailable; %s: %s", service, meanwhile, cause)
            else:
                outage.calls += 1
                outage.failed_at, outage.back_at = now, None
                if now < outage.logged_at + COUNT_SECONDS:
                    return
                outage.logged_at = now
                lasted = duration_text(now - outage.began_at)
                text = "%s unavailable for %s; failed calls: %d; %s: %s"
                line = (text, service, lasted, outage.calls, meanwhile, cause)
        self._log.warning(*line)
        if outage is None and self._call_hooks:
            self._call_hooks(OutageBegan(service=service, exception=error))

    def available(self, service: str) -> None:
        """Log the end of an outage if there is one: a call succeeded."""
        if service not in self._outages:  # no lock: this is called for every batch of jobs
            return
        now = self._monotonic()
        with self._lock:
            outage = self._outages.get(service)
            if outage is None:
                return
            outage.back_at = now if outage.back_at is None else outage.back_at
            if now < outage.failed_at + QUIET_SECONDS[service]:
                return
            del self._outages[service]
        seconds = outage.back_at - outage.began_at
        self._log.warning(
            "%s available again after %s; failed calls: %d", service, duration_text(seconds), outage.calls
        )
        if self._call_hooks:
            self._call_hooks(OutageEnded(service=service, duration=timedelta(seconds=seconds)))

    def unexpected(self, action: str, error: BaseException) -> None:
        """Log that *action* raised an unexpected error, with its traceback. The same error is then only counted."""
        now, text = self._monotonic(), "".join(format_exception_only(error)).strip()
        with self._lock:
            known = self._errors.get(action)
            if known is None or known.text != text:
                self._errors[action] = _RepeatedError(text, logged_at=now)
                count = 0
            else:
                known.count += 1
                if now < known.logged_at + COUNT_SECONDS:
                    return
                count, known.count, known.logged_at = known.count, 0, now
        if count:
            times = "time" if count == 1 else "times"
            self._log.error("%s failed %d more %s; retrying: %s", action, count, times, _one_line(text))
        elif isinstance(error, TaskHarborError):  # its message says what to do
            self._log.error("%s failed; retrying: %s", action, _one_line(str(error)))
        else:
            self._log.error("%s failed; retrying", action, exc_info=error)


@dataclass(slots=True)
class _Outage:
    began_at: float
    logged_at: float
    failed_at: float
    back_at: float | None = None
    """When the first call after the last failure succeeded."""
    calls: int = 1


@dataclass(slots=True)
class _RepeatedError:
    text: str
    logged_at: float
    count: int = 0


def _cause(error: TaskHarborError) -> str:
    """Return the reason without the words that say again that the service is unavailable."""
    return _one_line(getattr(error, "reason", "") or str(error))


def _one_line(text: str) -> str:
    return one_line(" ".join(text.split()), limit=MAX_CAUSE_CHARS)
