"""The janitor: periodic maintenance of a store, and a guard against jumps of its clock."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.cancellation import report_canceled
from taskharbor.core.durations import Duration, as_timedelta
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.hooks import ClockJumped, JobDead, LeasesExpired
from taskharbor.core.ids import new_token
from taskharbor.core.model import AuditEntry
from taskharbor.core.retention import KEEP, check_retention
from taskharbor.core.statistics import ROLL_UP, ROLL_UP_PERIOD
from taskharbor.core.text import duration_text
from taskharbor.diagnosis import WORKER_ALIVE_WITHIN, WORKER_GONE_AFTER
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.health import WatchedService
from taskharbor.observability.attempt_log import log_death
from taskharbor.observability.failure_log import STORE, FailureLog
from taskharbor.observability.hook_caller import NO_HOOKS, HookCaller
from taskharbor.operations import IDLE, OperationRunner
from taskharbor.operations import RETENTION as OPERATION_RETENTION
from taskharbor.outbox import CLOSE_AFTER, close_unpublished
from taskharbor.runtime import MIN_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from taskharbor.core.hooks import Hook
    from taskharbor.core.results import Death
    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.schedules import Scheduler
    from taskharbor.service import ServiceLoops

_LOG: Final = logging.getLogger("taskharbor.janitor")
PERIOD: Final = ROLL_UP_PERIOD
STATS_RETENTION: Final = timedelta(days=8)
AUDIT_RETENTION: Final = timedelta(days=90)
PRUNE_WITHIN: Final = timedelta(seconds=2)
WORKER_RETENTION: Final = timedelta(days=7)
"""How long workers that are gone are kept."""
MAX_TICK: Final = timedelta(minutes=30)
"""How long one tick takes at most while nothing is wrong: it may remove days of jobs by statements of 10 minutes."""
SCHEDULE_RETENTION: Final = timedelta(days=30)
"""How long a schedule is kept after the last worker that declared it."""
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

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        *,
        lease: timedelta,
        failures: FailureLog | None = None,
        call_hooks: HookCaller = NO_HOOKS,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._lease = lease
        self._failures = failures or FailureLog(_LOG)
        self._call_hooks = call_hooks
        self._last: ClockReading | None = None
        self._was_compared = False

    def may_reclaim(self) -> bool:
        return self._was_compared

    def store_time(self) -> datetime:
        """Estimate the store's time from its last reading. Before the first one, return the time of this machine."""
        last = self._last
        if last is None:
            return self._runtime.now()
        return last.store + timedelta(seconds=self._runtime.monotonic() - last.local)

    def tick(self) -> timedelta:
        try:
            reading = self._read()
            if self._last is not None:
                self._compare(self._last, reading)
        except StoreUnavailable as error:
            self._was_compared = False  # compare again after an outage before reclaiming
            self._failures.unavailable(STORE, error)
        else:
            self._failures.available(STORE)
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
            _LOG.error(
                "the store's clock jumped by %+.1f s; no leases are reclaimed for %s",
                jump.total_seconds(),
                duration_text(self._lease.total_seconds()),
            )
            self._driver.maintenance.report_clock_jump(expected=expected, lease=self._lease)
            if self._call_hooks:
                self._call_hooks(ClockJumped(jump=jump))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """The store's time and this process's monotonic time, read together within *tolerance*."""

    store: datetime
    local: float
    tolerance: timedelta


class Janitor:
    """Runs each duty once per period across all processes. There is no leader: a process claims a duty in the store.

    *hooks* receive an event for what a duty of this process did, such as a `JobDead` for each job that it made DEAD.
    *relay* wakes this process's outbox relay. Finished jobs are kept for *keep*, dead letters for *keep_dead*, or
    without a limit if it is None.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        *,
        lease: Duration,
        guard: ClockGuard | None = None,
        failures: FailureLog | None = None,
        period: Duration = PERIOD,
        keep: Duration = KEEP,
        keep_dead: Duration | None = None,
        relay: Callable[[], None] | None = None,
        hooks: Sequence[Hook] = (),
        scheduler: Scheduler | None = None,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        lease = as_timedelta(lease, "lease")
        self._period = min(as_timedelta(period, "period"), lease)
        self._call_hooks = HookCaller(hooks, _LOG)
        self._failures = failures or FailureLog(_LOG, call_hooks=self._call_hooks)
        self._guard = guard or ClockGuard(
            runtime, driver, lease=lease, failures=self._failures, call_hooks=self._call_hooks
        )
        self._owns_guard = guard is None
        self._retention = check_retention(keep, keep_dead)
        self._relay = relay
        self._duties: dict[str, tuple[timedelta, Callable[[], object]]] = {
            "expire": (self._period * (1 - DUTY_CHECK_FRACTION), self._expire),
            "bury": (6 * self._period, self._bury),
            "close": (timedelta(minutes=1), self._close_unpublished),
            "prune": (timedelta(minutes=1), self._prune),
            ROLL_UP: (self._period, lambda: driver.maintenance.roll_up(keep=STATS_RETENTION)),
            "audit": (timedelta(minutes=1), self._prune_audit),
            "workers": (
                timedelta(minutes=1),
                lambda: driver.maintenance.prune_workers(unseen_for=WORKER_GONE_AFTER, keep=WORKER_RETENTION),
            ),
            "schedules": (timedelta(minutes=1), self._prune_schedules),
            "pauses": (PERIOD, self._resume_paused),
            "operations": (timedelta(minutes=1), self._prune_operations),
        }
        if keep_dead is not None:
            self._duties["purge"] = (timedelta(minutes=1), self._purge)
        if relay is not None:
            self._duties["relay"] = (self._period, relay)
        self._check_at = dict.fromkeys(self._duties, 0.0)
        self._scheduler = scheduler
        self._fire_at = 0.0
        self._operations = OperationRunner(driver, runtime.monotonic, self._failures, call_hooks=self._call_hooks)
        self._operate_in = IDLE
        self._failed = False
        self.problem = "no duty has been checked yet"
        """Why duties are not done; empty if they are."""

    def watched_in(self, loops: ServiceLoops) -> WatchedService:
        """Return what `taskharbor.health` judges a process by whose *loops* run this janitor."""
        return WatchedService(
            loops=loops,
            ask_store=self._driver.inspector.settings,
            is_stopping=lambda: loops.is_stopped,
            problems=lambda: {"duties": self.problem},
        )

    def tick(self) -> timedelta:
        self._failed = False
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
                self._note_failure(error)
                break
        else:
            self._operate()
        self.problem = "the store failed in the last tick" if self._failed else ""
        return self._until_next()

    def _note_failure(self, error: StoreUnavailable) -> None:
        self._failures.unavailable(STORE, error)
        self._failed = True

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
            self._note_failure(error)
        self._fire_at = self._runtime.monotonic() + pause.total_seconds()

    def _operate(self) -> None:
        """Perform a step of each bulk operation that is due: last, since it may take some tenths of a second."""
        self._operate_in = IDLE  # if this raises, the next tick comes at its usual time
        try:
            self._operate_in = self._operations.tick()
        except StoreUnavailable as error:
            self._failures.unavailable(STORE, error)

    def _until_next(self) -> timedelta:
        pause = min(self._period * DUTY_CHECK_FRACTION, self._operate_in)
        if self._scheduler is not None:
            pause = min(pause, timedelta(seconds=self._fire_at - self._runtime.monotonic()))
        return max(pause, MIN_PAUSE)  # not zero: a remainder below a microsecond would make the loop spin

    def _expire(self) -> None:
        is_full = True
        while is_full:
            expired = self._driver.maintenance.expire(limit=STORE_BATCH)
            self._report("lease expired", (each.death for each in expired if each.death is not None))
            if expired:
                _LOG.warning("leases expired; jobs reclaimed: %d", len(expired))
                if self._call_hooks:
                    self._call_hooks(LeasesExpired(job_ids=[each.job_id for each in expired]))
                report_canceled([each.cancellation for each in expired], self._call_hooks)
            is_full = len(expired) == STORE_BATCH

    def _bury(self) -> None:
        if buried := self._driver.maintenance.bury(limit=STORE_BATCH):
            _LOG.error("%d waiting jobs had no attempts left; this is a bug, please report it", len(buried))
            self._report("waiting without attempts left", buried)

    def _report(self, cause: str, deaths: Iterable[Death]) -> None:
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
            log_death(_LOG, death, cause)
            self._call_hooks(dead)
            if self._relay is not None:
                self._relay()

    def _close_unpublished(self) -> None:
        while close_unpublished(self._driver, older_than=CLOSE_AFTER, limit=STORE_BATCH) == STORE_BATCH:
            pass

    def _prune(self) -> None:
        """Remove finished jobs for at most `PRUNE_WITHIN`: schedules and expired leases wait meanwhile."""
        stop_at = self._runtime.monotonic() + PRUNE_WITHIN.total_seconds()
        while (
            self._driver.maintenance.prune(older_than=self._retention["keep"], limit=STORE_BATCH, within=PRUNE_WITHIN)
            >= STORE_BATCH
        ):
            if self._runtime.monotonic() >= stop_at:
                return

    def _purge(self) -> None:
        """Remove old dead letters for at most `PRUNE_WITHIN`, if they have a retention."""
        keep_dead = self._retention["keep_dead"]
        assert keep_dead is not None  # noqa: S101  the duty exists only then
        stop_at = self._runtime.monotonic() + PRUNE_WITHIN.total_seconds()
        total, removed = 0, STORE_BATCH
        while removed >= STORE_BATCH and self._runtime.monotonic() < stop_at:
            removed = self._driver.maintenance.purge(older_than=keep_dead, limit=STORE_BATCH)
            total += removed
        if total:
            _LOG.info("removed %d dead letters older than %s", total, duration_text(keep_dead.total_seconds()))

    def _resume_paused(self) -> None:
        """Resume queues whose pause has ended, and write that to the audit log."""
        for name in self._driver.maintenance.resume_paused():
            _LOG.info("queue %s resumed; its pause has ended", name)
            entry = AuditEntry(
                id=new_token(), actor="janitor", action="queues.resume", target=name, detail={"why": "its pause ended"}
            )
            self._driver.control.record_audit([entry])

    def _prune_schedules(self) -> None:
        removed = self._driver.maintenance.prune_schedules(
            undeclared_for=SCHEDULE_RETENTION, alive_within=WORKER_ALIVE_WITHIN
        )
        if removed:
            _LOG.info("removed schedules that no worker has declared for %d days: %d", SCHEDULE_RETENTION.days, removed)

    def _prune_operations(self) -> None:
        while self._driver.operations.prune(older_than=OPERATION_RETENTION, limit=STORE_BATCH) >= STORE_BATCH:
            pass

    def _prune_audit(self) -> None:
        while self._driver.maintenance.prune_audit(older_than=AUDIT_RETENTION, limit=STORE_BATCH) >= STORE_BATCH:
            pass
