"""The janitor: periodic maintenance of a store, and a guard against jumps of its clock."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.hooks import JobDead
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.outbox import CLOSE_AFTER, close_unpublished, log_death
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
"""The fraction of a duty's period after which each process checks whether the duty is due.

With one check per period, a check could come just before the duty is due, and a dead worker's job would wait for
two periods.
"""
MAX_CLOCK_DRIFT: Final = timedelta(seconds=5)
"""The maximum drift of the store's clock from this process's between two readings; more is a jump."""


class ClockGuard:
    """Compares the store's clock with this process's clock, and reports jumps to the store.

    Before the first comparison nothing is reclaimed: if the store's clock has just jumped ahead, a
    lease that looks expired may belong to a live worker.
    """

    def __init__(self, runtime: Runtime, driver: Driver, *, lease: timedelta) -> None:
        self._runtime = runtime
        self._driver = driver
        self._lease = lease
        self._last: ClockReading | None = None
        self._was_compared = False

    def may_reclaim(self) -> bool:
        return self._was_compared

    def tick(self) -> timedelta:
        try:
            reading = self._read()
            if self._last is not None:
                self._compare(self._last, reading)
        except StoreUnavailable as error:
            self._was_compared = False  # compare again after an outage before reclaiming
            _LOG.warning("clock comparison failed: %s", error)
        else:
            self._was_compared = self._last is not None
            self._last = reading
        return min(PERIOD, self._lease / 3)

    def _read(self) -> ClockReading:
        before = self._runtime.monotonic()
        store = self._driver.inspector.now()
        after = self._runtime.monotonic()
        return ClockReading(store=store, local=(before + after) / 2, tolerance=timedelta(seconds=(after - before) / 2))

    def _compare(self, last: ClockReading, reading: ClockReading) -> None:
        expected = last.store + timedelta(seconds=reading.local - last.local)
        # A slow reply, or a pause of this process in between, is not a jump.
        if abs(reading.store - expected) > min(MAX_CLOCK_DRIFT, self._lease / 3) + last.tolerance + reading.tolerance:
            jump = reading.store - expected
            _LOG.error("the store's clock jumped by %s; no leases are reclaimed for %s", jump, self._lease)
            self._driver.maintenance.report_clock_jump(expected=expected, lease=self._lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """The store's time and this process's monotonic time, read together within *tolerance*."""

    store: datetime
    local: float
    tolerance: timedelta


class Janitor:
    """Runs each duty once per period across all processes. There is no leader: a process claims a duty in the store.

    *notify* receives a `JobDead` for each job that a duty of this process made DEAD. *relay* wakes this process's
    outbox relay.
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
        notify: Callable[[HookEvent], None] | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._period = min(period, lease)
        self._guard = guard or ClockGuard(runtime, driver, lease=lease)
        self._owns_guard = guard is None
        self._retention = retention
        self._relay, self._notify_hooks = relay, notify
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
        self._check_at = dict.fromkeys(self._duties, 0.0)
        self._scheduler = scheduler
        self._fire_at = 0.0

    def tick(self) -> timedelta:
        if self._owns_guard:
            self._guard.tick()
        self._fire()
        for name, (every, duty) in self._duties.items():
            if self._check_at[name] > self._runtime.monotonic():
                continue
            if name == "expire" and not self._guard.may_reclaim():
                continue  # left to processes that have compared the clocks
            self._check_at[name] = self._runtime.monotonic() + (every * DUTY_CHECK_FRACTION).total_seconds()
            try:
                if self._driver.maintenance.claim_duty(name, every=every):
                    duty()
            except StoreUnavailable as error:
                _LOG.warning("maintenance duty %s failed: %s", name, error)
                break
        return self._until_next()

    def _fire(self) -> None:
        """Fire due schedules: first, to be on time, and without claiming a duty, since the store fires each once."""
        if self._scheduler is None or self._fire_at > self._runtime.monotonic():
            return
        # Set first: if the scheduler raises, the next tick skips it and runs the duties.
        self._fire_at = self._runtime.monotonic() + self._period.total_seconds()
        pause = self._period * DUTY_CHECK_FRACTION
        try:
            pause = self._scheduler.tick()
        except StoreUnavailable as error:
            _LOG.warning("firing schedules failed: %s", error)
        self._fire_at = self._runtime.monotonic() + pause.total_seconds()

    def _until_next(self) -> timedelta:
        pause = self._period * DUTY_CHECK_FRACTION
        if self._scheduler is None:
            return pause
        # Not zero: a remainder below a microsecond would make the loop spin.
        return max(min(pause, timedelta(seconds=self._fire_at - self._runtime.monotonic())), MIN_PAUSE)

    def _expire(self) -> None:
        is_full = True
        while is_full:
            expired = self._driver.maintenance.expire(limit=STORE_BATCH)
            self._report(each.death for each in expired if each.death is not None)
            if expired:
                _LOG.warning("reclaimed %d jobs with expired leases", len(expired))
            is_full = len(expired) == STORE_BATCH

    def _bury(self) -> None:
        if buried := self._driver.maintenance.bury(limit=STORE_BATCH):
            _LOG.error("buried %d exhausted jobs that were waiting; this should never happen", len(buried))
            self._report(buried)

    def _report(self, deaths: Iterable[Death]) -> None:
        """Report jobs that a duty made DEAD. No worker reports them, since none ran them at the time."""
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
        while close_unpublished(self._driver, older_than=CLOSE_AFTER, limit=STORE_BATCH) == STORE_BATCH:
            pass

    def _prune(self) -> None:
        """Remove finished jobs for at most `PRUNE_WITHIN`: schedules and expired leases wait meanwhile."""
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
