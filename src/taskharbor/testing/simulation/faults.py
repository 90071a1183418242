"""Everything that can go wrong between a process and its store."""

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
from taskharbor.testing.simulation.workloads import SYNC
from taskharbor.testing.simulation.world import DRIFT, EPOCH, ProcessKilled, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Job, OutboxRow
    from taskharbor.drivers.base import Driver
    from taskharbor.drivers.memory import MemoryDriver
    from taskharbor.testing.simulation.history import History
    from taskharbor.testing.simulation.world import Process, World

FATAL: Final = ("kill before", "kill after")
LONG: Final = ("pause before", "pause after")
SHORT: Final = ("unavailable", "lost", "late", "slow before", "slow after", "outage", "jam", "no thread")
ODD: Final = ("fail before", "fail after", "lock", "lose slowly")
"""A call raises what no driver knows, before its effect or after; rows are locked; replies are lost as leases end."""
ALL: Final = (*FATAL, *LONG, *SHORT, *ODD)
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
SLOW: Final = 1.0
LATE: Final = 1.5
NOTICED: Final = 2.5
"""Seconds in which a worker has compared the store's clock with its own, and that a jump of it is longer than."""


class Unmapped(RuntimeError):
    """What a driver lets through that it does not know, or a user's function raised inside of it."""


@dataclass(slots=True)
class StoreFaults:
    """Which faults there are, and how often: drawn anew before every call. *lease* is in seconds."""

    world: World
    rates: Mapping[str, float]
    lease: float
    is_on: bool = True
    out_until: float = -1.0
    was_out_at: float = -1e9
    jammed: str = ""
    """A verb that fails for a while, when all others work."""
    jammed_until: float = -1.0
    mute_until: float = -1.0
    """How long the queue service, or one of its verbs, is out of reach."""
    mute: frozenset[str] = frozenset()
    slow_until: float = -1.0
    """When the last reply is given up on that is lost slowly."""
    mortal: set[str] = field(default_factory=set)
    """The processes that may be killed and paused."""

    def draw(self, process: Process) -> str | None:
        if not self.is_on:
            return None
        chance = self.world.chance.random()
        for name, rate in self.rates.items():
            chance -= rate
            if chance < 0:
                return name if process.name in self.mortal or name in SHORT else None
        return None

    def is_out(self, verb: str) -> bool:
        if verb in QUEUE_CALLS:
            return self.is_on and verb in self.mute and self.world.now < self.mute_until
        is_jammed = verb == self.jammed and self.world.now < self.jammed_until
        return self.is_on and (is_jammed or self.world.now < self.out_until)

    def begin(self, fault: str, verb: str) -> None:
        until = self.world.now + self.world.chance.uniform(0.1, 3) * self.lease
        if verb in QUEUE_CALLS:
            calls = QUEUE_CALLS if fault == "outage" else (self.world.chance.choice(QUEUE_CALLS),)
            self.mute = frozenset(calls)
            self.mute_until = until
            return
        self.was_out_at = max(self.was_out_at, until)
        if fault == "outage":
            self.out_until = until
        else:
            self.jammed, self.jammed_until = self.world.chance.choice(CAN_STALL), until

    def has_thread(self) -> bool:
        return not (self.is_on and self.world.chance.random() < self.rates.get("no thread", 0))


class FaultyStore:
    """A memory driver that many processes reach, each through its own `driver_for`."""

    def __init__(self, driver: MemoryDriver, history: History, faults: StoreFaults) -> None:
        self.driver = driver
        self._history = history
        self._faults = faults
        self._world = history.world
        self._seen: dict[JobId, Job] = {}
        self.trap = ""
        self.stop: Callable[[Process], None] = lambda _process: None
        self.settle_lost: Callable[[], None] | None = None
        """If set, the reply of the next settlement is lost, and this happens before its repeat."""
        self._claimed: dict[tuple[JobId, Token], tuple[Process, float]] = {}
        self._kept_at: dict[tuple[JobId, Token], float] = {}
        """When a lease was last made or extended."""
        self._saw_clock: dict[str, float] = {}
        """When a process first heard what time it is."""
        self._missed_clock: dict[str, float] = {}
        """When a process first asked for it in vain."""
        self.failed_at: dict[str, float] = {}
        """When a process last tried in vain to keep its leases, or to learn of them."""
        self.unheard: set[Token] = set()
        """Tokens of calls that took effect after their caller had looked and found nothing, or long before that."""

    @property
    def rows(self) -> Mapping[JobId, Job]:
        """The jobs as they are now."""
        return self.driver._tables.rows.jobs  # noqa: SLF001  the simulation sees what no client sees

    @property
    def outbox(self) -> list[OutboxRow]:
        """The events of all deaths."""
        return list(self.driver._tables.rows.outbox.values())  # noqa: SLF001  as above

    @property
    def held_until(self) -> datetime:
        """Until when nobody takes over, by the store's clock, because that jumped."""
        jump = self.driver._tables.rows.jump  # noqa: SLF001  as above
        return EPOCH if jump is None else jump.hold

    def is_in_doubt(self, job_id: JobId, token: Token) -> bool:
        """Whether the store's clock jumped since that lease was last made or extended."""
        return self._world.jumped_at >= self._kept_at[job_id, token]

    def driver_for(self, process: Process) -> Driver:
        """Return what *process* takes for its driver."""
        return cast("Driver", ProcessDriver(self, process))

    def call(self, process: Process, verb: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call the store, or not, or so that nobody hears the answer."""
        self._world.spend(self._world.chance.uniform(0.0002, 0.002))
        fault = self._faults.draw(process) or ""
        asked = dict(zip(("what", "more"), args, strict=False)) | named
        fate = self._before(process, verb, fault)
        if fate == "late":
            self._commit_later(process, verb, partial(function, *args, **named), asked)
            raise StoreUnavailable(fate)
        if fate not in COMMITTED:
            self._record(process, verb, asked, fate)
            self._after(process, fault, fate)
        if fault == "lock" and verb in CAN_BE_LOCKED:
            answer = self._beside_locks(function, *args, **named)
        else:
            answer = function(*args, **named)
        trap = self._spring(process) if verb in CLAIMING_CALLS and _claims(answer) and fate == "ok" else ""
        is_lost = verb == "settle" and fate == "ok" and self.settle_lost is not None
        fate = "lost" if trap == "lost" or is_lost else fate
        self._record(process, verb, asked, fate, answer)
        if is_lost:
            self._spring_settle()
        if fault == "lose slowly" and verb in CLAIMING_CALLS:
            self.unheard.add(asked["token"])
        if trap == "slow":
            self._world.wait(0.2)
        self._after(process, fault, fate)
        return answer

    def _before(self, process: Process, verb: str, fault: str) -> str:
        """Let happen what happens before the store hears of a call; return what becomes of the call."""
        is_cut = fault == "outage" and self._world.chance.random() < 0.5 and not self._faults.is_out(verb)
        if fault in {"outage", "jam"}:
            self._faults.begin(fault, verb)
        if fault in {"pause before", "slow before"}:
            self._stand_still(process, fault)
        return "lost" if is_cut else self._fate(fault, verb)

    def _after(self, process: Process, fault: str, fate: str) -> None:
        """Let happen what happens before the caller hears of it."""
        if fate.startswith("killed"):
            self._history.note(process, "is killed")
            process.kill()
            raise ProcessKilled
        if fault in {"pause after", "slow after"}:
            self._stand_still(process, fault)
        if fate.startswith("failed"):
            raise Unmapped(fate)
        if fault == "lose slowly" and fate == "lost":
            seconds = self._world.chance.uniform(0.5, 1.5) * self._faults.lease
            self._faults.slow_until = max(self._faults.slow_until, self._world.now + seconds)
            self._faults.was_out_at = max(self._faults.was_out_at, self._faults.slow_until)
            self._world.wait(seconds)
        if fate in {"lost", "unavailable"}:
            raise StoreUnavailable(fate)

    def _beside_locks(self, function: Callable[..., Any], items: Sequence[Any], **named: Any) -> list[Any]:
        """Call for those of *items* that no other session has locked, and let the others be skipped."""
        locked = [self._world.chance.random() < 0.5 for _ in items]
        answers = iter(
            function([each for each, is_locked in zip(items, locked, strict=True) if not is_locked], **named)
        )
        return [
            Skipped(getattr(each, "lease", each)) if is_locked else next(answers)
            for each, is_locked in zip(items, locked, strict=True)
        ]

    def _spring(self, process: Process) -> str:
        """Tell a worker to stop while the store gives it jobs; return what becomes of its call."""
        trap, self.trap = self.trap, ""
        if trap:
            self.stop(process)
        return trap

    def _spring_settle(self) -> None:
        meanwhile, self.settle_lost = self.settle_lost, None
        if meanwhile is not None:
            self._world.schedule(self._world.now, meanwhile)

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

    def _commit_later(self, process: Process, verb: str, call: Callable[[], Any], asked: dict[str, Any]) -> None:
        """Let it take effect after the caller has given up on it."""

        def commit() -> None:
            answer = call()
            self._record(process, verb, asked, "late", answer)
            if verb in CLAIMING_CALLS:
                self.unheard.add(asked["token"])

        self._world.schedule(self._world.now + self._world.chance.uniform(0, LATE), commit)

    def _record(self, process: Process, verb: str, asked: dict[str, Any], fate: str, answer: Any = None) -> None:
        at, moves = self._world.store_time(), self._moves()
        self._history.add(
            DriverCall(
                at=at,
                happened_at=self._world.true_time(),
                process=process.name,
                verb=verb,
                asked=asked,
                fate=fate,
                answer=answer,
                moves=moves,
            )
        )
        if verb == "report_clock_jump" and fate in COMMITTED:
            self._world.untold = 0.0
            self._world.lag *= at > asked["expected"]
        if verb == "now":
            (self._saw_clock if fate == "ok" else self._missed_clock).setdefault(process.name, self._world.now)
        if verb in {"extend", "read_back"} and fate != "ok":
            self.failed_at[process.name] = self._world.now
        for move in moves:
            self._follow(process, verb, move)

    def _follow(self, process: Process, verb: str, move: RowChange) -> None:
        before, after = move.before, move.after
        if before is not None and before.lease_token is not None and verb in RECLAIMING_VERBS:
            self._check_lost(before, before.lease_token)
            self._check_told(process, before)
        if after is None or after.lease_token is None:
            return
        if verb in CLAIMING_CALLS:
            self._claimed[after.id, after.lease_token] = process, self._world.now
        if verb in {"extend", *CLAIMING_CALLS}:
            self._kept_at[after.id, after.lease_token] = self._world.now

    def _check_lost(self, job: Job, token: Token) -> None:
        """Whoever could extend a lease and did not want to let go of it must not lose it."""
        holder, since = self._claimed[job.id, token]
        is_excused = holder.is_dead or token in self.unheard or holder.is_disturbed(since)
        is_excused = is_excused or self._was_given_up(job, token, since)
        if not is_excused and self.failed_at.get(holder.name, -1.0) < since and not self.is_in_doubt(job.id, token):
            what = f"{holder.name} lost its lease on {shown(job.id)} ({job.type}) and nothing kept it from"
            self._history.violated(f"{what} extending it")

    def _was_given_up(self, job: Job, token: Token, since: float) -> bool:
        """Tell whether its sync handler did not return, and the lease was kept for about a lease after its timeout."""
        if job.type not in SYNC or job.timeout is None:
            return False
        given_up_at = since + job.timeout.total_seconds() * (1 - 2 * DRIFT) + self._faults.lease
        return self._kept_at[job.id, token] > given_up_at - self._faults.lease / 2

    def _check_told(self, process: Process, job: Job) -> None:
        """Whoever could have noticed that the clock jumped ahead takes over from nobody before the store is told."""
        jumped_at = self._world.jumped_at
        since = jumped_at - NOTICED
        has_seen = self._saw_clock.get(process.name, inf) < since and not process.is_disturbed(since)
        has_seen = has_seen and self._missed_clock.get(process.name, inf) > jumped_at
        if has_seen and self._world.untold > NOTICED and self._world.now > jumped_at + NOTICED:
            self._history.violated(f"{process.name} took over {shown(job.id)} by a clock that had jumped")

    def _moves(self) -> tuple[RowChange, ...]:
        seen, rows = self._seen, self.rows
        if len(seen) == len(rows) and all(map(is_, seen.values(), rows.values())):
            return ()  # most calls change nothing
        moves = [RowChange(seen.get(job_id), row) for job_id, row in rows.items() if seen.get(job_id) is not row]
        moves += [RowChange(row, None) for job_id, row in seen.items() if job_id not in rows]
        self._seen = dict(rows)
        return tuple(moves)

    def _stand_still(self, process: Process, fault: str) -> None:
        if fault.startswith("pause"):
            seconds = self._world.chance.uniform(0.5, 3) * self._faults.lease
            self._history.note(process, f"is paused for {seconds:.2f}")
            process.pause(seconds)
            self._world.wait(0)
        else:
            seconds = self._world.chance.uniform(0, SLOW)
            process.disturbed_at = max(process.disturbed_at, self._world.now + seconds)
            self._world.wait(seconds)


class ProcessDriver:
    """The four protocols of a driver, as one process reaches them."""

    def __init__(self, store: FaultyStore, process: Process) -> None:
        self.maintenance = DriverPart(store, process, store.driver.maintenance)
        self.inspector = DriverPart(store, process, store.driver.inspector)
        self.control = DriverPart(store, process, store.driver.control)
        self._moving = DriverPart(store, process, store.driver)
        self.remember = store.driver.remember  # once for each process, before it claims anything: no fault point

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._moving, verb)


class ProcessTransport:
    """A queue service, as one process reaches it: each call is a fault point, as one of the store is."""

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
    """Any verb of one protocol: each call is a fault point."""

    def __init__(self, store: FaultyStore, process: Process, target: Any) -> None:
        self._store, self._process, self._target = store, process, target

    def __getattr__(self, verb: str) -> Any:
        return partial(self._store.call, self._process, verb, getattr(self._target, verb))
