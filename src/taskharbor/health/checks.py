"""Judges whether the loops of a service turn, and whether it can do its work."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Final

from taskharbor.core.text import duration_text
from taskharbor.runtime import seconds_since_boot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskharbor.service import LoopActivity, ServiceLoops

STUCK_AFTER: Final = timedelta(minutes=1)
"""How much longer than by design a tick may take: several calls of a store that fails at its deadline."""
MIN_STALL_SECONDS: Final = 5.0
"""If `ServiceHealth.beat` comes later than this, and than half of *stuck_after*, the process did not run meanwhile."""
STORE_ANSWER_SECONDS: Final = 0.8
"""How long a request waits for the store. By default, Kubernetes waits a second for the answer of a probe."""
STORE_ANSWER_VALID_SECONDS: Final = 1.0
"""How long an answer of the store is reused, however many requests arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedService:
    """What a service is judged by.

    *ask_store* calls the store, and raises if that fails. *problems* returns what does not work by the name of
    the check; an empty text if it works. *event_loop_wait* returns for how many seconds the event loop of
    handlers has not answered.
    """

    loops: ServiceLoops
    ask_store: Callable[[], object]
    is_stopping: Callable[[], bool]
    problems: Callable[[], Mapping[str, str]]
    event_loop_wait: Callable[[], float] = lambda: 0.0


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, and what is wrong; an empty text if nothing is."""

    name: str
    problem: str


class ServiceHealth:
    """The liveness and readiness of one service.

    Liveness never calls the store: to restart a process does not help if its store is away. A loop is stuck if its
    tick takes *stuck_after* longer than by design, or begins that much too late. Call `beat` every second.
    """

    def __init__(
        self, *, stuck_after: timedelta = STUCK_AFTER, monotonic: Callable[[], float] = seconds_since_boot
    ) -> None:
        self._stuck_after_seconds = stuck_after.total_seconds()
        self._monotonic = monotonic
        self._service: WatchedService | None = None
        self._store: StoreProbe | None = None
        self._event_loop_wait = 0.0
        self._beat_at = monotonic()
        self._resumed_at = -inf

    def watch(self, service: WatchedService) -> None:
        """Judge this service from now on. Until then, the process is alive and not ready."""
        self._store = StoreProbe(service.ask_store, self._monotonic)
        self._service = service

    def beat(self) -> None:
        """Ask the event loop of handlers, and notice if this process did not run for a time."""
        now = self._monotonic()
        if now > self._beat_at + max(self._stuck_after_seconds / 2, MIN_STALL_SECONDS):
            # Suspended, or starved: all loops seem to be late until they have run again.
            self._resumed_at = now
        self._beat_at = now
        if self._service is not None:
            self._event_loop_wait = self._service.event_loop_wait()

    def live(self) -> list[Check]:
        """Return whether each loop turns."""
        if self._service is None:
            return []
        activities = [*self._service.loops.activities.items()]
        checks = [Check(f"loop:{name}", self._stuck(each)) for name, each in activities if each.state.pause is not None]
        return [*checks, Check("event-loop", self._blocked())]

    def ready(self) -> list[Check]:
        """Return whether the service can do its work: it is alive, it is not stopping, and its store answers."""
        service, store = self._service, self._store
        if service is None or store is None:
            return [Check("started", "waits for its store")]
        activities = [*service.loops.activities.items()]
        errors = [
            Check(f"tick:{name}", f"the last one raised {each.state.error}")
            for name, each in activities
            if each.state.error
        ]
        return [
            *self.live(),
            *errors,
            *(Check(name, problem) for name, problem in service.problems().items()),
            Check("store", store.problem()),
            Check("shutdown", "the service is stopping" if service.is_stopping() else ""),
        ]

    def idle_seconds(self) -> dict[str, float]:
        """Return how long ago a tick of each kind of loop began or ended; without loops that have ended."""
        seconds: dict[str, float] = {}
        for name, activity in [] if self._service is None else [*self._service.loops.activities.items()]:
            state, kind = activity.state, name.partition(":")[0]
            if state.pause is not None:
                seconds[kind] = min(seconds.get(kind, inf), max(0.0, self._monotonic() - state.since))
        return seconds

    def errors(self) -> dict[str, int]:
        """Return how many ticks of each kind of loop have raised."""
        counts: dict[str, int] = {}
        for name, activity in [] if self._service is None else [*self._service.loops.activities.items()]:
            kind = name.partition(":")[0]
            counts[kind] = counts.get(kind, 0) + activity.errors
        return counts

    def _stuck(self, activity: LoopActivity) -> str:
        state, now = activity.state, self._monotonic()
        lasted = now - max(state.since, self._resumed_at)
        by_design = activity.may_take if state.is_ticking else state.pause or timedelta(0)
        if lasted <= by_design.total_seconds() + self._stuck_after_seconds:
            return ""
        what = "its tick has run" if state.is_ticking else "it has not begun a tick"
        return f"{what} for {duration_text(now - state.since)}"

    def _blocked(self) -> str:
        seconds = min(self._event_loop_wait, self._monotonic() - self._resumed_at)
        return f"blocked for {duration_text(seconds)}" if seconds > self._stuck_after_seconds else ""


class StoreProbe:
    """Asks a store on request. Calls wait a short time for the answer, and share one question."""

    def __init__(self, ask: Callable[[], object], monotonic: Callable[[], float]) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._answered.set()
        self._answered_at = -inf
        self._asked_at = 0.0
        self._problem = ""

    def problem(self) -> str:
        """Return why the store is no use; an empty text if it answers."""
        with self._lock:
            if self._answered.is_set() and self._monotonic() > self._answered_at + STORE_ANSWER_VALID_SECONDS:
                self._asked_at = self._monotonic()
                self._answered.clear()
                try:
                    threading.Thread(target=self._run, name="taskharbor-health-store", daemon=True).start()
                except RuntimeError:  # no thread can be started; the next call tries again
                    self._answered.set()
                    raise
        if self._answered.wait(STORE_ANSWER_SECONDS):
            return self._problem
        return f"no answer for {duration_text(self._monotonic() - self._asked_at)}"

    def _run(self) -> None:
        problem = ""
        try:
            self._ask()
        except Exception as error:  # noqa: BLE001  whatever it raises is the answer
            # Not its text, which may name hosts and users: the log has it.
            problem = type(error).__name__
        self._problem, self._answered_at = problem, self._monotonic()
        self._answered.set()


def is_passed(checks: Sequence[Check]) -> bool:
    return not any(check.problem for check in checks)
