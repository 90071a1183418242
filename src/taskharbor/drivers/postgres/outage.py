"""A server that is away: what is known of it, and the probes that find it again."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from random import uniform
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

FAST_SECONDS: Final = 0.25
"""A call waits no longer for a probe that it started, if the server has been away for a whole deadline."""
SOON_SECONDS: Final = 0.05
"""Nor does it wait for a probe that is due later than this."""
PROBE_SECONDS: Final = 1.0
"""A probe that takes longer delays no other one: its packets may be lost, and those of the next may arrive."""
FIRST_PAUSE_SECONDS: Final = 0.01
MAX_PAUSE_SECONDS: Final = 0.5


class Outage:
    """Decides how long calls wait for a server that is away. While one is known, only probes connect.

    A probe is a thread that connects once; the call that finds one due starts it. Until the server has
    been away for a whole deadline calls wait, so that a restart costs them only time. From then on they
    fail fast, and report when the next probe is due.

    *probe* connects, and returns the error if the server is still away.
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
        """Whether the last attempt to connect failed because the server is away."""
        return self._failure is not None

    def begin(self, failure: StoreUnavailable, *, give_up_at: float) -> None:
        """Record that connecting failed: calls wait until *give_up_at*, and fail fast from then on."""
        with self._changed:
            if self._failure is None:
                self._give_up_at, self._pause = give_up_at, FIRST_PAUSE_SECONDS
                self._fail(failure)

    def end(self) -> None:
        """Record that the server answers, or that the driver is closed: waiting calls return."""
        with self._changed:
            self._failure = None
            self._changed.notify_all()

    def wait(self) -> None:
        """Return when the outage ends. Raise `StoreUnavailable` if it does not in time."""
        with self._changed:
            give_up_at = max(self._give_up_at, time.monotonic() + FAST_SECONDS)
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
                if fails_fast and self._probe_at - now > SOON_SECONDS:
                    raise self._refusal(self._failure, now)
                self._changed.wait(min(give_up_at, self._probe_at) - now)

    def _start_probe(self, now: float) -> None:
        self._probe_at = now + PROBE_SECONDS
        try:
            threading.Thread(target=self._run_probe, name="taskharbor-probe", daemon=True).start()
        except RuntimeError:  # no thread can be started: the interpreter is ending, or there are too many
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
        self._probe_at = time.monotonic() + uniform(self._pause / 2, self._pause)  # noqa: S311  no secret: it spreads clients
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
        self._changed.notify_all()

    def _refusal(self, failure: StoreUnavailable, now: float) -> StoreUnavailable:
        """Return an error for one call: an object that several threads raise mixes up their tracebacks."""
        refusal = StoreUnavailable(
            failure.reason, retry_in=timedelta(seconds=max(self._probe_at - now, FIRST_PAUSE_SECONDS))
        )
        refusal.__cause__ = failure
        return refusal
