"""What keeps the store in order: in every process, and done by one of them at a time."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.hooks import JobDead
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.outbox import FIRST_START, close_unpublished, log_death
from taskharbor.runtime import MIN_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from taskharbor.core.hooks import HookEvent
    from taskharbor.core.results import Death
    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.schedules import Scheduler

_LOG: Final = logging.getLogger("taskharbor.janitor")
PERIOD: Final = timedelta(seconds=5)
RETENTION: Final = timedelta(days=7)
STATS_RETENTION: Final = timedelta(days=8)
AUDIT_RETENTION: Final = timedelta(days=90)
PRUNE_WITHIN: Final = timedelta(seconds=2)
WORKER_TTL: Final = timedelta(minutes=5)
DUTY_CHECK_FRACTION: Final = 0.2
"""The part of its period after which everybody looks whether a duty is due.

Whoever looked only once in a period might look just before: then a dead worker's job waits for two.
"""
MAX_CLOCK_DRIFT: Final = timedelta(seconds=5)
"""How far the store's clock may stray from ours between two looks before that is a jump."""


class ClockGuard:
    """Watches whether the store's clock runs as ours does, and tells the store when it jumped.

    Until it has compared them once nobody reclaims: a lease that is over by a clock that
    just jumped ahead may be in good hands.
    """

    def __init__(self, runtime: Runtime, driver: Driver, *, lease: timedelta) -> None:
        self._runtime = runtime
        self._driver = driver
        self._lease = lease
        self._seen: ClockReading | None = None
        self._was_compared = False

    def may_reclaim(self) -> bool:
        return self._was_compared

    def tick(self) -> timedelta:
        try:
            look = self._look()
            if self._seen is not None:
                self._compare(self._seen, look)
        except StoreUnavailable as error:
            self._was_compared = False  # whoever comes back after an outage looks first
            _LOG.warning("cannot compare clocks: %s", error)
        else:
            self._was_compared = self._seen is not None
            self._seen = look
        return min(PERIOD, self._lease / 3)

    def _look(self) -> ClockReading:
        before = self._runtime.monotonic()
        store = self._driver.inspector.now()
        after = self._runtime.monotonic()
        return ClockReading(store=store, ours=(before + after) / 2, give=timedelta(seconds=(after - before) / 2))

    def _compare(self, seen: ClockReading, look: ClockReading) -> None:
        expected = seen.store + timedelta(seconds=look.ours - seen.ours)
        # A slow reply, or a pause of this process in between, is no jump.
        if abs(look.store - expected) > min(MAX_CLOCK_DRIFT, self._lease / 3) + seen.give + look.give:
            jump = look.store - expected
            _LOG.error("the store's clock jumped by %s; no lease is brought back for %s", jump, self._lease)
            self._driver.maintenance.report_clock_jump(expected=expected, lease=self._lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """The store's clock and ours at one moment, give or take a little."""

    store: datetime
    ours: float
    give: timedelta


class Janitor:
    """Does each duty once in its period, whichever process gets through the turnstile: there is no leader.

    *tell* gets a `JobDead` for each job that died by a duty done here, and *relay* wakes the relay of this process.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        *,
        lease: timedelta,
        guard: ClockGuard | None = None,
        period: timedelta = PERIOD,
        retention: timedelta = RETENTION,
        relay: Callable[[], None] | None = None,
        tell: Callable[[HookEvent], None] | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._period = min(period, lease)
        self._guard = guard or ClockGuard(runtime, driver, lease=lease)
        self._owns_guard = guard is None
        self._retention = retention
        self._relay, self._notify_hooks = relay, tell
        self._duties: dict[str, tuple[timedelta, Callable[[], object]]] = {
            "expire": (self._period * (1 - DUTY_CHECK_FRACTION), self._expire),
            "bury": (6 * self._period, self._bury),
            "close": (timedelta(minutes=1), self._close_unpublished),
            "prune": (timedelta(minutes=1), self._prune),
            "roll-up": (self._period, lambda: driver.maintenance.roll_up(keep=STATS_RETENTION)),
            "audit": (timedelta(minutes=1), self._prune_audit),
            "workers": (timedelta(minutes=1), lambda: driver.maintenance.prune_workers(unseen_for=WORKER_TTL)),
        }
        if relay is not None:
            self._duties["relay"] = (self._period, relay)
        self._look_at = dict.fromkeys(self._duties, 0.0)
        self._scheduler = scheduler
        self._fire_at = 0.0

    def tick(self) -> timedelta:
        if self._owns_guard:
            self._guard.tick()
        self._fire()
        for name, (every, duty) in self._duties.items():
            if self._look_at[name] > self._runtime.monotonic():
                continue
            if name == "expire" and not self._guard.may_reclaim():
                continue  # left to those who know that the clock is right
            self._look_at[name] = self._runtime.monotonic() + (every * DUTY_CHECK_FRACTION).total_seconds()
            try:
                if self._driver.maintenance.claim_duty(name, every=every):
                    duty()
            except StoreUnavailable as error:
                _LOG.warning("cannot %s: %s", name, error)
                break
        return self._until_next()

    def _fire(self) -> None:
        """Let schedules fire: first, for they are punctual, and without a turnstile, for the store fires each once."""
        if self._scheduler is None or self._fire_at > self._runtime.monotonic():
            return
        # An error of ours must not keep the duties from being done: the next tick passes by here.
        self._fire_at = self._runtime.monotonic() + self._period.total_seconds()
        pause = self._period * DUTY_CHECK_FRACTION
        try:
            pause = self._scheduler.tick()
        except StoreUnavailable as error:
            _LOG.warning("cannot fire schedules: %s", error)
        self._fire_at = self._runtime.monotonic() + pause.total_seconds()

    def _until_next(self) -> timedelta:
        pause = self._period * DUTY_CHECK_FRACTION
        if self._scheduler is None:
            return pause
        # Not at once: what is less than a microsecond away would be asked for again and again.
        return max(min(pause, timedelta(seconds=self._fire_at - self._runtime.monotonic())), MIN_PAUSE)

    def _expire(self) -> None:
        is_full = True
        while is_full:
            expired = self._driver.maintenance.expire(limit=STORE_BATCH)
            self._report(each.death for each in expired if each.death is not None)
            if expired:
                _LOG.warning("brought back %d jobs whose lease was over", len(expired))
            is_full = len(expired) == STORE_BATCH

    def _bury(self) -> None:
        if buried := self._driver.maintenance.bury(limit=STORE_BATCH):
            _LOG.error("buried %d spent jobs that were waiting: that should never be needed", len(buried))
            self._report(buried)

    def _report(self, deaths: Iterable[Death]) -> None:
        """Report deaths that a duty caused; no worker does, for none ran these jobs at the time."""
        for death in deaths:
            dead = JobDead(
                job_id=death.job_id,
                type=death.type,
                queue=death.queue,
                life=death.life,
                attempt_count=death.attempt_count,
                reason=death.reason,
            )
            log_death(_LOG, dead)
            if self._notify_hooks is not None:
                self._notify_hooks(dead)
            if self._relay is not None:
                self._relay()

    def _close_unpublished(self) -> None:
        while close_unpublished(self._driver, older_than=FIRST_START, limit=STORE_BATCH) == STORE_BATCH:
            pass

    def _prune(self) -> None:
        """Remove finished jobs, for a short time: schedules and expired leases wait meanwhile."""
        stop_at = self._runtime.monotonic() + PRUNE_WITHIN.total_seconds()
        while (
            self._driver.maintenance.prune(older_than=self._retention, limit=STORE_BATCH, within=PRUNE_WITHIN)
            >= STORE_BATCH
        ):
            if self._runtime.monotonic() >= stop_at:
                return

    def _prune_audit(self) -> None:
        while self._driver.maintenance.prune_audit(older_than=AUDIT_RETENTION, limit=STORE_BATCH) >= STORE_BATCH:
            pass
