"""Faults injected between a process and its store or queue service, and the wrappers that inject them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import inf
from operator import is_
from typing import TYPE_CHECKING, Any, Final, cast

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.model import Claim
from taskharbor.core.results import Skipped
from taskharbor.delivery.transport import TransportUnavailable
from taskharbor.testing.simulation.history import COMMITTED, RECLAIMING_VERBS, DriverCall, RowChange
from taskharbor.testing.simulation.queue_service import QUEUE_CALLS
from taskharbor.testing.simulation.workloads import UNSTOPPABLE
from taskharbor.testing.simulation.world import CLOCK_DRIFT_FRACTION, EPOCH, ProcessKilled, short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Job, OutboxRow
    from taskharbor.drivers.base import Driver
    from taskharbor.drivers.memory import MemoryDriver
    from taskharbor.testing.simulation.history import History
    from taskharbor.testing.simulation.world import Process, World

# Each fault happens before or after the call takes effect.
KILLS: Final = ("kill before", "kill after")
PAUSES: Final = ("pause before", "pause after")
NETWORK_FAULTS: Final = (
    "unavailable",
    "lost",
    "late",
    "slow before",
    "slow after",
    "outage",
    "verb outage",
    "no thread",
)
DRIVER_FAULTS: Final = ("fail before", "fail after", "lock", "lose slowly")
"""An unmapped error before or after the effect, rows locked by another session, a reply lost after about a lease."""
ALL_FAULTS: Final = (*KILLS, *PAUSES, *NETWORK_FAULTS, *DRIVER_FAULTS)
CAN_BE_LOCKED: Final = frozenset({"settle", "extend"})
CAN_BE_LOST_SLOWLY: Final = frozenset({"reserve", "claim", "settle"})
CAN_STALL: Final = ("settle", "settle", "reserve", "read_back", "expire")
CAN_BE_LATE: Final = frozenset({"reserve", "claim", "dispatch", "extend", "settle", "expire", "cancel"})
CLAIMING_CALLS: Final = frozenset({"reserve", "claim"})
FATES: Final = {
    "kill before": "killed before",
    "kill after": "killed after",
    "fail before": "failed before",
    "fail after": "failed after",
}
MAX_SLOW_SECONDS: Final = 1.0
MAX_LATE_SECONDS: Final = 1.5
JUMP_NOTICED_SECONDS: Final = 2.5
"""Time within which a worker compares the store's clock with its own. Every simulated jump is longer."""


class Unmapped(RuntimeError):
    """An error that the driver does not convert to a TaskHarbor error."""


@dataclass(slots=True)
class StoreFaults:
    """The enabled faults and their rates. A fault is drawn before every call. *lease* is in seconds."""

    world: World
    rates: Mapping[str, float]
    lease: float
    is_on: bool = True
    out_until: float = -1.0
    was_out_at: float = -1e9
    failing_verb: str = ""
    """A verb that is unavailable until `verb_out_until`, while all others work."""
    verb_out_until: float = -1.0
    queue_out_until: float = -1.0
    """Until when `queue_calls_out` are unavailable."""
    queue_calls_out: frozenset[str] = frozenset()
    """The verbs of the queue service that are unavailable: one or all."""
    slow_until: float = -1.0
    """When the last caller of a slowly lost reply times out."""
    killable: set[str] = field(default_factory=set)
    """The processes that may be killed and paused."""

    def draw(self, process: Process) -> str | None:
        if not self.is_on:
            return None
        drawn = self.world.rng.random()
        for name, rate in self.rates.items():
            drawn -= rate
            if drawn < 0:
                return name if process.name in self.killable or name in NETWORK_FAULTS else None
        return None

    def is_out(self, verb: str) -> bool:
        if verb in QUEUE_CALLS:
            return self.is_on and verb in self.queue_calls_out and self.world.now < self.queue_out_until
        is_verb_out = verb == self.failing_verb and self.world.now < self.verb_out_until
        return self.is_on and (is_verb_out or self.world.now < self.out_until)

    def begin(self, fault: str, verb: str) -> None:
        until = self.world.now + self.world.rng.uniform(0.1, 3) * self.lease
        if verb in QUEUE_CALLS:
            calls = QUEUE_CALLS if fault == "outage" else (self.world.rng.choice(QUEUE_CALLS),)
            self.queue_calls_out = frozenset(calls)
            self.queue_out_until = until
            return
        self.was_out_at = max(self.was_out_at, until)
        if fault == "outage":
            self.out_until = until
        else:
            self.failing_verb, self.verb_out_until = self.world.rng.choice(CAN_STALL), until

    def has_thread(self) -> bool:
        return not (self.is_on and self.world.rng.random() < self.rates.get("no thread", 0))


class FaultyStore:
    """A memory driver shared by many processes, which injects faults. Each process uses its own `driver_for`."""

    def __init__(self, driver: MemoryDriver, history: History, faults: StoreFaults) -> None:
        self.driver = driver
        self._history = history
        self._faults = faults
        self._world = history.world
        self._seen: dict[JobId, Job] = {}
        self.stop_in_claim = ""
        """If set, the next worker that claims jobs is stopped during the call, whose reply is "slow" or "lost"."""
        self.stop: Callable[[Process], None] = lambda _process: None
        self.after_lost_settle: Callable[[], None] | None = None
        """If set, the reply of the next settlement is lost, and this runs before its repeat."""
        self._claimed: dict[tuple[JobId, Token], tuple[Process, float]] = {}
        self._extended_at: dict[tuple[JobId, Token], float] = {}
        """When a lease was last created or extended."""
        self._clock_read_at: dict[str, float] = {}
        """When a process first read the store's clock."""
        self._clock_failed_at: dict[str, float] = {}
        """When a process first failed to read it."""
        self.failed_at: dict[str, float] = {}
        """When a process last failed to extend its leases or to read back its claims."""
        self.unseen_claims: set[Token] = set()
        """Tokens of claims that took effect long before or after their caller read them back."""

    @property
    def rows(self) -> Mapping[JobId, Job]:
        """The current rows of all jobs."""
        return self.driver._tables.rows.jobs  # noqa: SLF001  the simulation inspects the tables directly

    @property
    def outbox(self) -> list[OutboxRow]:
        """The dead-letter events of all jobs."""
        return list(self.driver._tables.rows.outbox.values())  # noqa: SLF001  as above

    @property
    def held_until(self) -> datetime:
        """The end of the clock hold, by the store's clock."""
        jump = self.driver._tables.rows.jump  # noqa: SLF001  as above
        return EPOCH if jump is None else jump.hold

    def is_in_doubt(self, job_id: JobId, token: Token) -> bool:
        """Return whether the store's clock jumped since that lease was last created or extended."""
        return self._world.jumped_at >= self._extended_at[job_id, token]

    def driver_for(self, process: Process) -> Driver:
        """Return the driver that *process* uses."""
        return cast("Driver", ProcessDriver(self, process))

    def call(self, process: Process, verb: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call *function* with a fault drawn for this call: it may not run, or its reply may be lost."""
        self._world.spend(self._world.rng.uniform(0.0002, 0.002))
        fault = self._faults.draw(process) or ""
        arguments = dict(zip(("what", "more"), args, strict=False)) | named
        fate = self._begin_call(process, verb, fault)
        if fate == "late":
            self._commit_later(process, verb, partial(function, *args, **named), arguments)
            raise StoreUnavailable(fate)
        if fate not in COMMITTED:
            self._record(process, verb, arguments, fate)
            self._end_call(process, fault, fate)
        if fault == "lock" and verb in CAN_BE_LOCKED:
            answer = self._call_unlocked(function, *args, **named)
        else:
            answer = function(*args, **named)
        has_claims = verb in CLAIMING_CALLS and _claims(answer) and fate == "ok"
        reply = self._stop_during_claim(process) if has_claims else ""
        is_lost = verb == "settle" and fate == "ok" and self.after_lost_settle is not None
        fate = "lost" if reply == "lost" or is_lost else fate
        self._record(process, verb, arguments, fate, answer)
        if is_lost:
            self._run_after_lost_settle()
        if fault == "lose slowly" and verb in CLAIMING_CALLS:
            self.unseen_claims.add(arguments["token"])
        if reply == "slow":
            self._world.wait(0.2)
        self._end_call(process, fault, fate)
        return answer

    def _begin_call(self, process: Process, verb: str, fault: str) -> str:
        """Apply the faults that precede the call's effect, and return the call's fate."""
        is_cut = fault == "outage" and self._world.rng.random() < 0.5 and not self._faults.is_out(verb)
        if fault in {"outage", "verb outage"}:
            self._faults.begin(fault, verb)
        if fault in {"pause before", "slow before"}:
            self._delay(process, fault)
        return "lost" if is_cut else self._fate(fault, verb)

    def _end_call(self, process: Process, fault: str, fate: str) -> None:
        """Apply the faults that follow the call's effect and precede its reply."""
        if fate.startswith("killed"):
            self._history.note(process, "is killed")
            process.kill()
            raise ProcessKilled
        if fault in {"pause after", "slow after"}:
            self._delay(process, fault)
        if fate.startswith("failed"):
            raise Unmapped(fate)
        if fault == "lose slowly" and fate == "lost":
            seconds = self._world.rng.uniform(0.5, 1.5) * self._faults.lease
            self._faults.slow_until = max(self._faults.slow_until, self._world.now + seconds)
            self._faults.was_out_at = max(self._faults.was_out_at, self._faults.slow_until)
            self._world.wait(seconds)
        if fate in {"lost", "unavailable"}:
            raise StoreUnavailable(fate)

    def _call_unlocked(self, function: Callable[..., Any], items: Sequence[Any], **named: Any) -> list[Any]:
        """Call *function* with the unlocked *items* only, and return `Skipped` for the locked ones."""
        locked = [self._world.rng.random() < 0.5 for _ in items]
        answers = iter(
            function([each for each, is_locked in zip(items, locked, strict=True) if not is_locked], **named)
        )
        return [
            Skipped(getattr(each, "lease", each)) if is_locked else next(answers)
            for each, is_locked in zip(items, locked, strict=True)
        ]

    def _stop_during_claim(self, process: Process) -> str:
        """Stop *process* during its claim if that is requested, and return what happens to the reply."""
        reply, self.stop_in_claim = self.stop_in_claim, ""
        if reply:
            self.stop(process)
        return reply

    def _run_after_lost_settle(self) -> None:
        action, self.after_lost_settle = self.after_lost_settle, None
        if action is not None:
            self._world.schedule(self._world.now, action)

    def _fate(self, fault: str, verb: str) -> str:
        if self._faults.is_out(verb):
            return "unavailable"
        if fault == "late" and verb not in CAN_BE_LATE:
            return "lost"
        if fault.startswith("fail") and verb in QUEUE_CALLS:
            return "unavailable"
        if fault == "lose slowly":
            return "lost" if verb in CAN_BE_LOST_SLOWLY else "ok"
        return FATES.get(fault, fault if fault in {"unavailable", "lost", "late"} else "ok")

    def _commit_later(self, process: Process, verb: str, call: Callable[[], Any], arguments: dict[str, Any]) -> None:
        """Schedule the call to take effect after its caller got `StoreUnavailable`."""

        def commit() -> None:
            answer = call()
            self._record(process, verb, arguments, "late", answer)
            if verb in CLAIMING_CALLS:
                self.unseen_claims.add(arguments["token"])

        self._world.schedule(self._world.now + self._world.rng.uniform(0, MAX_LATE_SECONDS), commit)

    def _record(self, process: Process, verb: str, arguments: dict[str, Any], fate: str, answer: Any = None) -> None:
        at, changes = self._world.store_time(), self._row_changes()
        self._history.add(
            DriverCall(
                at=at,
                happened_at=self._world.true_time(),
                process=process.name,
                verb=verb,
                arguments=arguments,
                fate=fate,
                answer=answer,
                changes=changes,
            )
        )
        if verb == "report_clock_jump" and fate in COMMITTED:
            self._world.unreported_jump = 0.0
            self._world.unreported_set_back *= at > arguments["expected"]
        if verb == "now":
            (self._clock_read_at if fate == "ok" else self._clock_failed_at).setdefault(process.name, self._world.now)
        if verb in {"extend", "read_back"} and fate != "ok":
            self.failed_at[process.name] = self._world.now
        for change in changes:
            self._observe_change(process, verb, change)

    def _observe_change(self, process: Process, verb: str, change: RowChange) -> None:
        before, after = change.before, change.after
        if before is not None and before.lease_token is not None and verb in RECLAIMING_VERBS:
            self._check_lost(before, before.lease_token)
            self._check_jump_reported(process, before)
        if after is None or after.lease_token is None:
            return
        if verb in CLAIMING_CALLS:
            self._claimed[after.id, after.lease_token] = process, self._world.now
        if verb in {"extend", *CLAIMING_CALLS}:
            self._extended_at[after.id, after.lease_token] = self._world.now

    def _check_lost(self, job: Job, token: Token) -> None:
        """Check that a worker which was able to extend its lease did not lose it."""
        holder, since = self._claimed[job.id, token]
        is_excused = holder.is_dead or token in self.unseen_claims or holder.is_disturbed(since)
        is_excused = is_excused or self._is_abandoned(job, token, since)
        if not is_excused and self.failed_at.get(holder.name, -1.0) < since and not self.is_in_doubt(job.id, token):
            what = f"{holder.name} lost its lease on {short_name(job.id)} ({job.type})"
            self._history.add_violation(f"{what}, though it could have extended it")

    def _is_abandoned(self, job: Job, token: Token, since: float) -> bool:
        """Return whether a handler did not return, and its lease was extended for a lease after its timeout."""
        if job.type not in UNSTOPPABLE or job.timeout is None:
            return False
        abandoned_at = since + job.timeout.total_seconds() * (1 - 2 * CLOCK_DRIFT_FRACTION) + self._faults.lease
        return self._extended_at[job.id, token] > abandoned_at - self._faults.lease / 2

    def _check_jump_reported(self, process: Process, job: Job) -> None:
        """Check that a worker able to notice a forward clock jump reported it before it reclaimed a job."""
        jumped_at = self._world.jumped_at
        since = jumped_at - JUMP_NOTICED_SECONDS
        can_notice = self._clock_read_at.get(process.name, inf) < since and not process.is_disturbed(since)
        can_notice = can_notice and self._clock_failed_at.get(process.name, inf) > jumped_at
        if (
            can_notice
            and self._world.unreported_jump > JUMP_NOTICED_SECONDS
            and self._world.now > jumped_at + JUMP_NOTICED_SECONDS
        ):
            self._history.add_violation(f"{process.name} reclaimed {short_name(job.id)} after an unreported clock jump")

    def _row_changes(self) -> tuple[RowChange, ...]:
        seen, rows = self._seen, self.rows
        if len(seen) == len(rows) and all(map(is_, seen.values(), rows.values())):
            return ()  # most calls change nothing
        changes = [RowChange(seen.get(job_id), row) for job_id, row in rows.items() if seen.get(job_id) is not row]
        changes += [RowChange(row, None) for job_id, row in seen.items() if job_id not in rows]
        self._seen = dict(rows)
        return tuple(changes)

    def _delay(self, process: Process, fault: str) -> None:
        if fault.startswith("pause"):
            seconds = self._world.rng.uniform(0.5, 3) * self._faults.lease
            self._history.note(process, f"is paused for {seconds:.2f}")
            process.pause(seconds)
            self._world.wait(0)
        else:
            seconds = self._world.rng.uniform(0, MAX_SLOW_SECONDS)
            process.disturbed_at = max(process.disturbed_at, self._world.now + seconds)
            self._world.wait(seconds)


class ProcessDriver:
    """The driver of one process: every call passes through its `FaultyStore`."""

    def __init__(self, store: FaultyStore, process: Process) -> None:
        self.maintenance = DriverPart(store, process, store.driver.maintenance)
        self.inspector = DriverPart(store, process, store.driver.inspector)
        self.operations = store.driver.operations  # without faults: a simulated store has no operations
        self.control = DriverPart(store, process, store.driver.control)
        self.attempt_logs = DriverPart(store, process, store.driver.attempt_logs)
        self._driver = DriverPart(store, process, store.driver)
        # Called once per process before it claims anything, so it is no fault point.
        self.remember = store.driver.remember

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._driver, verb)


class ProcessTransport:
    """The queue service of one process. Each call is a fault point, as in the store."""

    def __init__(self, store: FaultyStore, process: Process, service: Any) -> None:
        self._store, self._process, self._service = store, process, service

    def __getattr__(self, verb: str) -> Any:
        return partial(self._call, verb)

    def _call(self, verb: str, *args: Any, **named: Any) -> Any:
        try:
            return self._store.call(self._process, verb, getattr(self._service, verb), *args, **named)
        except StoreUnavailable as error:
            raise TransportUnavailable(str(error)) from error


def _claims(answer: Any) -> list[Claim]:
    return [each for each in answer if isinstance(each, Claim)]


class DriverPart:
    """One protocol of a driver. Each call is a fault point, unless it hands over statistics."""

    def __init__(self, store: FaultyStore, process: Process, target: Any) -> None:
        self._store, self._process, self._target = store, process, target

    def __getattr__(self, verb: str) -> Any:
        if verb == "record_statistics":  # no promise is about them
            return self._target.record_statistics
        return partial(self._store.call, self._process, verb, getattr(self._target, verb))
