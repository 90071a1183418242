"""How calls wait while the server is unavailable, and the probes that detect its return."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from random import uniform
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PROBE_WAIT_SECONDS: Final = 0.25
"""After a whole deadline of outage, a call waits no longer than this for a probe that it started."""
MAX_PROBE_DELAY_SECONDS: Final = 0.05
"""After a whole deadline of outage, a call fails at once if the next probe is due later than this."""
PROBE_SECONDS: Final = 1.0
"""The next probe starts after this time even if the last one is still connecting: its packets may be lost."""
FIRST_PAUSE_SECONDS: Final = 0.01
MAX_PAUSE_SECONDS: Final = 0.5


class Outage:
    """Decides how long calls wait while the server is unavailable. During an outage only probes connect.

    A probe is a thread that connects once. A call that finds a probe due starts it. Until the outage has
    lasted for a whole deadline, calls wait, so that a server restart only delays them. After that they
    fail fast, and report when the next probe is due.

    *probe* connects, and returns the error if the server is still unavailable.
    """

    def __init__(self, probe: Callable[[], StoreUnavailable | None]) -> None:
        self._probe = probe
        self._changed = threading.Condition()
        self._failure: StoreUnavailable | None = None
        self._failures = 0
        self._give_up_at = self._probe_at = 0.0
        self._pause = FIRST_PAUSE_SECONDS

    @property
    def is_on(self) -> bool:
        """Whether the last attempt to connect failed because the server is unavailable."""
        return self._failure is not None

    def begin(self, failure: StoreUnavailable, *, give_up_at: float) -> None:
        """Record that connecting failed. Calls wait until *give_up_at*, and fail fast after that."""
        with self._changed:
            if self._failure is None:
                self._give_up_at, self._pause = give_up_at, FIRST_PAUSE_SECONDS
                self._fail(failure)

    def end(self) -> None:
        """Record that the server is available or that the driver is closed, and wake the waiting calls."""
        with self._changed:
            self._failure = None
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until the outage ends. Raise `StoreUnavailable` if it does not end in time."""
        with self._changed:
            give_up_at = max(self._give_up_at, time.monotonic() + MAX_PROBE_WAIT_SECONDS)
            probed_after = -1  # failures
            while self._failure is not None:
                now = time.monotonic()
                if now >= give_up_at:
                    raise self._refusal(self._failure, now)
                if now >= self._probe_at:
                    probed_after = self._failures
                    self._start_probe(now)
                    continue
                fails_fast = now >= self._give_up_at and self._failures != probed_after
                if fails_fast and self._probe_at - now > MAX_PROBE_DELAY_SECONDS:
                    raise self._refusal(self._failure, now)
                self._changed.wait(min(give_up_at, self._probe_at) - now)

    def _start_probe(self, now: float) -> None:
        self._probe_at = now + PROBE_SECONDS
        try:
            threading.Thread(target=self._run_probe, name="taskharbor-probe", daemon=True).start()
        except RuntimeError:  # no thread can be started: the interpreter is shutting down, or there are too many
            self._run_probe()

    def _run_probe(self) -> None:
        failure = self._probe()
        with self._changed:
            if failure is None:
                self.end()
            elif self._failure is not None:
                self._fail(failure)

    def _fail(self, failure: StoreUnavailable) -> None:
        self._failure = failure
        self._failures += 1
        self._probe_at = time.monotonic() + uniform(self._pause / 2, self._pause)  # noqa: S311  not for security: it spreads the clients
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
        self._changed.notify_all()

    def _refusal(self, failure: StoreUnavailable, now: float) -> StoreUnavailable:
        """Return a new error for each call: raising one object in several threads would mix their tracebacks."""
        refusal = StoreUnavailable(
            failure.reason, retry_in=timedelta(seconds=max(self._probe_at - now, FIRST_PAUSE_SECONDS))
        )
        refusal.__cause__ = failure
        return refusal
