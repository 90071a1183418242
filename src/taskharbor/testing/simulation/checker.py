"""The verdict on a history: the invariants of a durable queue, each looked for in what really happened."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import LeaseLost
from taskharbor.core.model import AttemptOutcome, Claim
from taskharbor.core.results import Settled
from taskharbor.core.states import Event, Status
from taskharbor.testing.simulation.history import RECLAIMING_VERBS, DriverCall, HandlerBegan, HandlerEnded, Note
from taskharbor.testing.simulation.message_checks import MessageChecker, wrong_messages
from taskharbor.testing.simulation.plan import LEASE
from taskharbor.testing.simulation.transition_checks import wrong_move
from taskharbor.testing.simulation.workloads import STOPPABLE, SYNC
from taskharbor.testing.simulation.world import DRIFT, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Job
    from taskharbor.core.results import Settlement
    from taskharbor.testing.simulation.faults import FaultyStore
    from taskharbor.testing.simulation.history import Happening, History, RowChange
    from taskharbor.testing.simulation.queue_service import QueueService

Attempt = tuple["JobId", "Token"]
BATCHES: Final = frozenset({"settle", "extend"})
STOP_WITHIN: Final = timedelta(seconds=1)
NEVER_FAIL: Final = frozenset(
    {"quick", "plain", "slow", "stubborn", "blocking", "plain_slow", "deaf", "stuck", "snoozing"}
)


class ClockJumpChecker:
    """What the store was told of its clock: what it should have read, what it read, and how long nobody takes over."""

    def __init__(self) -> None:
        self._told: tuple[datetime, datetime, datetime] | None = None

    def take(self, call: DriverCall) -> None:
        """Learn of a call."""
        if call.verb != "report_clock_jump":
            return
        before, after, until = call.asked["expected"], call.at, call.at + call.asked["lease"]
        if after <= before:
            self._told = None
        elif self._told is not None and after < self._told[2]:
            self._told = min(before, self._told[0]), max(after, self._told[1]), max(until, self._told[2])
        else:
            self._told = before, after, until

    def forbid(self, call: DriverCall, job: Job) -> bool:
        """Whether *call* took over *job*, as it was before, while nobody may."""
        is_hold = self._told is not None and call.at < self._told[2]
        return is_hold and call.verb in RECLAIMING_VERBS and job.status is Status.PROCESSING

    def counted(self, job: Job) -> int:
        """Return how many attempts count, should the one under way be lost: one that ended by a jump does not."""
        end = job.lease_expires_at
        is_lost_to_it = self._told is not None and end is not None and self._told[0] < end <= self._told[1]
        return job.attempt_count - is_lost_to_it


def check(
    history: History, store: FaultyStore, accepted: Sequence[JobId], service: QueueService | None = None
) -> list[str]:
    """Return all that is wrong with *history* and with what it left in the store and in the queues."""
    checker = Checker()
    for happening in history.happenings:
        checker.take(happening)
    left = [] if service is None else wrong_messages(store, service, checker.ringing.told)
    return [*checker.violations, *_wrong_rows(checker, store, accepted), *left]


class Checker:
    """Reads a history from its beginning, and remembers what the rest of it must keep to."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.claimed: dict[Attempt, tuple[str, int, datetime]] = {}
        self.delivered: set[Attempt] = set()
        self.begun: dict[Attempt, HandlerBegan] = {}
        self.ended: dict[Attempt, HandlerEnded] = {}
        self.settled: dict[Attempt, Event] = {}
        self.refused: dict[Attempt, datetime] = {}
        self.finals: Counter[tuple[JobId, int]] = Counter()
        self.tokens: set[Token] = set()
        self.expires: dict[Attempt, datetime] = {}
        self.sent: dict[Attempt, Event] = {}
        self.stopping: set[str] = set()
        self.paused: set[str] = set()
        self.jobs: dict[JobId, Job] = {}
        self.pruned: set[JobId] = set()
        self.deaths: Counter[JobId] = Counter()
        self.cancels: dict[JobId, datetime] = {}
        self.jumps = ClockJumpChecker()
        self.quiet_since: datetime | None = None
        self.ringing = MessageChecker()

    def take(self, happening: Happening) -> None:
        match happening:
            case DriverCall():
                self._take_sent(happening)
                if happening.is_committed:
                    self._take_call(happening)
            case HandlerBegan():
                self._take_began(happening)
            case HandlerEnded():
                self._take_ended(happening)
            case Note(what="is quiet"):
                self.quiet_since = happening.at
            case Note(what="is told to stop" | "has lost half of its slots"):
                self.stopping.add(happening.process)

    def _wrong(self, at: Happening, what: str) -> None:
        self.violations.append(f"{what}: {at}")

    def _take_call(self, call: DriverCall) -> None:
        for move in call.moves:
            if (wrong := wrong_move(call, move, self.paused, self.jumps)) is not None:
                self._wrong(call, f"job {shown(move.job_id)} {wrong}")
            self._take_move(call, move)
        self.jumps.take(call)
        if (wrong := self.ringing.take(call, self.settled)) is not None:
            self._wrong(call, wrong)
        match call.verb:
            case "reserve" | "claim":
                self._take_reserve(call)
            case "read_back" if call.fate == "ok":
                self.delivered |= {(claim.job.id, claim.lease.token) for claim in call.answer}
            case "extend" if call.fate == "ok":
                self._take_extend(call)
            case "settle":
                self._take_settle(call)
            case "pause":
                self.paused |= set(call.asked["what"])
            case "resume":
                self.paused -= set(call.asked["what"])

    def _take_move(self, call: DriverCall, move: RowChange) -> None:
        before, after = move.before, move.after
        if after is None:
            self._take_gone(call, move.job_id)
            return
        self.jobs[after.id] = after
        if after.cancel_requested_at is not None and (before is None or before.cancel_requested_at is None):
            self.cancels[after.id] = call.happened_at
        is_final_before = before is not None and before.status.is_final
        if after.status.is_final and not is_final_before:
            self.finals[after.id, after.life] += 1
            self.deaths[after.id] += after.status is Status.DEAD
            if self.finals[after.id, after.life] > 1:
                self._wrong(call, f"job {shown(after.id)} ended twice in one life")
        if after.lease_token is not None and after.lease_expires_at is not None:
            key, ends_at = (after.id, after.lease_token), call.happened_at + (after.lease_expires_at - call.at)
            left = self.expires.get(key, ends_at) - call.happened_at
            if call.verb == "extend" and left < LEASE / 4 and self._is_quiet(self.claimed[key][2]):
                self._wrong(call, f"the lease on {shown(after.id)} was extended at the last moment, {left} before")
            self.expires[key] = ends_at

    def _take_gone(self, call: DriverCall, job_id: JobId) -> None:
        self.pruned.add(job_id)
        if call.verb != "prune":
            self._wrong(call, "a job is gone")
        if self.deaths[job_id] > len(self.ringing.told[job_id]):
            self._wrong(call, f"job {shown(job_id)} was pruned, and nobody was told of its death")

    def _is_quiet(self, since: datetime) -> bool:
        return self.quiet_since is not None and since >= self.quiet_since

    def _take_reserve(self, call: DriverCall) -> None:
        token = call.asked["token"]
        for claim in [each for each in call.answer if isinstance(each, Claim)]:
            key = (claim.job.id, token)
            self.claimed[key] = call.process, claim.job.attempt_count, call.happened_at
            if call.fate == "ok":
                self.delivered.add(key)

    def _take_extend(self, call: DriverCall) -> None:
        for lease, answer in zip(call.asked["what"], call.answer, strict=True):
            if isinstance(answer, LeaseLost):
                self.refused.setdefault((lease.job_id, lease.token), call.happened_at)

    def _take_settle(self, call: DriverCall) -> None:
        moved = {move.job_id for move in call.moves}
        for each, answer in zip(call.asked["what"], call.answer, strict=True):
            key = (each.lease.job_id, each.lease.token)
            if each.lease.job_id in moved:
                self.settled[key] = each.outcome.event
                self._check_outcome(call, each)
            if isinstance(answer, Settled) and self.settled.get(key) is not each.outcome.event:
                self._wrong(call, f"{shown(key[0])} is said to be settled, and is not")
            self._check_knew(call, key)

    def _take_sent(self, call: DriverCall) -> None:
        """A worker says how an attempt ended; it may repeat that, and never change it. A token is for one call."""
        if call.verb in {"reserve", "claim"}:
            if call.asked["token"] in self.tokens:
                self._wrong(call, "a token was used twice")
            self.tokens.add(call.asked["token"])
        named = [getattr(each, "lease", each).job_id for each in call.asked["what"]] if call.verb in BATCHES else []
        if len(set(named)) < len(named):
            self._wrong(call, "one call names a job twice")
        for each in call.asked["what"] if call.verb == "settle" else ():
            key, event = (each.lease.job_id, each.lease.token), each.outcome.event
            if self.sent.setdefault(key, event) is not event:
                self._wrong(call, f"{shown(key[0])} is said to have ended by {self.sent[key]} and by {event}")

    def _check_knew(self, call: DriverCall, key: Attempt) -> None:
        ended, refused_at = self.ended.get(key), self.refused.get(key)
        # Who wakes up does everything at once: what it decided before it was refused may go out after.
        if ended is not None and refused_at is not None and ended.disturbed_at + STOP_WITHIN <= refused_at < ended.at:
            self._wrong(call, f"an outcome of {shown(key[0])} was sent though its lease was known to be lost")

    def _check_outcome(self, call: DriverCall, settlement: Settlement) -> None:
        """What is recorded is what the handler did."""
        key, event = (settlement.lease.job_id, settlement.lease.token), settlement.outcome.event
        job, began, ended = self.jobs[key[0]], self.begun.get(key), self.ended.get(key)
        if event is Event.ACK and (ended is None or ended.error is not None or job.result is None):
            self._wrong(call, f"a success of {shown(job.id)} is recorded that never was")
        elif event is Event.ACK and began is not None and ended is not None and _is_late(job, began, ended):
            self._wrong(call, f"a success of {shown(job.id)} is recorded though its handler returned after its timeout")
        elif event is Event.ACK and ended is not None and _decoded(job) != ended.result:
            self._wrong(call, f"the result of {shown(job.id)} is not what its handler returned")
        elif (
            event in {Event.RETRY, Event.SNOOZE}
            and began is not None
            and (ended is None or ended.error is None)
            and not self._is_past_timeout(key, call.happened_at if ended is None else ended.at)
        ):
            self._wrong(call, f"a {event} of {shown(job.id)} is recorded, which its handler did not ask for")
        elif event is Event.RELEASE and began is not None and call.process not in self.stopping:
            self._wrong(call, f"{shown(job.id)} is released by a worker that goes on")

    def _is_past_timeout(self, key: Attempt, at: datetime) -> bool:
        timeout = self.jobs[key[0]].timeout
        return timeout is not None and at >= self.claimed[key][2] + timeout * (1 - 2 * DRIFT)

    def _take_began(self, began: HandlerBegan) -> None:
        key = (began.job_id, began.token)
        process, attempt, _ = self.claimed.get(key, (None, None, None))
        if key in self.begun:
            self._wrong(began, "an attempt was run twice")
        self.begun[key] = began
        if (process, attempt) != (began.process, began.attempt) or key not in self.delivered:
            self._wrong(began, "a handler began without a claim that was committed and heard of")
        if not began.is_held:
            self._wrong(began, "a handler began though its lease was over")
        if began.overlaps:
            self._wrong(began, "another attempt still runs, which was never told to stop")

    def _take_ended(self, ended: HandlerEnded) -> None:
        key = (ended.job_id, ended.token)
        self.ended[key] = ended
        if self.jobs[ended.job_id].type in STOPPABLE:
            for what, told_at, within in self._reasons_to_stop(self.jobs[ended.job_id], self.begun[key]):
                if ended.disturbed_at < told_at and ended.at > told_at + within:
                    self._wrong(ended, f"it was not stopped {what}")

    def _reasons_to_stop(self, job: Job, began: HandlerBegan) -> Iterator[tuple[str, datetime, timedelta]]:
        """Yield why a handler that heeds what it is told must have stopped by now: why, since when, within what."""
        key = (began.job_id, began.token)
        yield "when its lease ended", max(self.expires[key], began.at), timedelta(0)
        if key in self.refused:
            yield "when its lease was known to be lost", self.refused[key], STOP_WITHIN
        if job.timeout is not None and self._is_quiet(began.at):
            yield "by its timeout", began.at, job.timeout + STOP_WITHIN
        if job.cancel_requested_at is not None and job.lease_token == began.token:
            yield "by its cancel", max(self.cancels[job.id], began.at), LEASE


def _wrong_rows(checker: Checker, store: FaultyStore, accepted: Sequence[JobId]) -> Iterator[str]:
    """Yield what is wrong with what is left in the store."""
    gone = [job_id for job_id in accepted if job_id not in store.rows and job_id not in checker.pruned]
    yield from (f"job {shown(job_id)} was accepted and is lost" for job_id in gone)
    for job in store.rows.values():
        attempts = store.driver.inspector.attempts([job.id])
        recorded = {attempt.token for attempt in attempts} | {job.settled_token}
        for job_id, token in checker.claimed:
            if job_id == job.id and token not in recorded and token != job.lease_token:
                yield f"job {shown(job_id)}: the attempt under {shown(token)} left no trace"
        deaths = [attempt for attempt in attempts if attempt.status is Status.DEAD]
        events = store.driver.inspector.outbox([job.id])
        if len(events) != len(deaths) or len({event.event.event_id for event in events}) != len(events):
            yield f"job {shown(job.id)} died {len(deaths)} times and has {len(events)} events"
        outcomes = Counter(attempt.outcome for attempt in attempts)
        if job.type in NEVER_FAIL and outcomes[AttemptOutcome.FAILED]:
            yield f"job {shown(job.id)} ({job.type}) is said to have failed"
        lost = outcomes[AttemptOutcome.LOST] + outcomes[AttemptOutcome.TIMED_OUT]  # before it could begin
        is_first_death = job.type == "poison" and job.status is Status.DEAD and job.life == 1
        if is_first_death and (lost != job.max_attempts or lost != job.attempt_count):
            yield f"job {shown(job.id)} is poison and died after {lost} lost attempts of {job.max_attempts}"


def _is_late(job: Job, began: HandlerBegan, ended: HandlerEnded) -> bool:
    """Tell whether a sync handler returned after its timeout, however its process's clock runs."""
    return job.type in SYNC and job.timeout is not None and ended.at > began.at + job.timeout * (1 + 2 * DRIFT)


def _decoded(job: Job) -> Any:
    return None if job.result is None else job.codec.decode(job.result, context=b"result:%b" % job.id.bytes)
