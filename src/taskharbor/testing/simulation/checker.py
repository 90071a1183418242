"""Check the invariants of a durable queue against the recorded history of a simulation."""

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
from taskharbor.testing.simulation.transition_checks import wrong_change
from taskharbor.testing.simulation.workloads import STOPPABLE, SYNC
from taskharbor.testing.simulation.world import CLOCK_DRIFT_FRACTION, short_name

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
BATCH_VERBS: Final = frozenset({"settle", "extend"})
STOP_WITHIN: Final = timedelta(seconds=1)
NEVER_FAIL: Final = frozenset(
    {"quick", "plain", "slow", "stubborn", "blocking", "plain_slow", "deaf", "stuck", "snoozing"}
)


class ClockJumpChecker:
    """The clock jump last reported to the store: the expected time, the actual time, and the end of the clock hold."""

    def __init__(self) -> None:
        self._jump: tuple[datetime, datetime, datetime] | None = None

    def observe(self, call: DriverCall) -> None:
        """Record *call* if it reports a clock jump."""
        if call.verb != "report_clock_jump":
            return
        before, after, until = call.arguments["expected"], call.at, call.at + call.arguments["lease"]
        if after <= before:
            self._jump = None
        elif self._jump is not None and after < self._jump[2]:
            self._jump = min(before, self._jump[0]), max(after, self._jump[1]), max(until, self._jump[2])
        else:
            self._jump = before, after, until

    def forbids(self, call: DriverCall, job: Job) -> bool:
        """Return whether *call* reclaimed *job* during the clock hold. *job* is its row before the call."""
        is_hold = self._jump is not None and call.at < self._jump[2]
        return is_hold and call.verb in RECLAIMING_VERBS and job.status is Status.PROCESSING

    def counted_attempts(self, job: Job) -> int:
        """Return the attempts that count if the current one is lost. A lease that the jump expired does not count."""
        end = job.lease_expires_at
        is_lost_to_jump = self._jump is not None and end is not None and self._jump[0] < end <= self._jump[1]
        return job.attempt_count - is_lost_to_jump


def check(
    history: History, store: FaultyStore, accepted: Sequence[JobId], service: QueueService | None = None
) -> list[str]:
    """Return all violations in *history*, in the final rows of the store, and in the queues."""
    checker = Checker()
    for happening in history.happenings:
        checker.observe(happening)
    in_queues = [] if service is None else wrong_messages(store, service, checker.messages.published)
    return [*checker.violations, *_wrong_rows(checker, store, accepted), *in_queues]


class Checker:
    """Reads a history from its start and checks each entry against the state recorded so far."""

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
        self.messages = MessageChecker()

    def observe(self, happening: Happening) -> None:
        match happening:
            case DriverCall():
                self._observe_attempted_call(happening)
                if happening.is_committed:
                    self._observe_commit(happening)
            case HandlerBegan():
                self._observe_began(happening)
            case HandlerEnded():
                self._observe_ended(happening)
            case Note(what="is quiet"):
                self.quiet_since = happening.at
            case Note(what="is told to stop" | "has lost half of its slots"):
                self.stopping.add(happening.process)

    def _wrong(self, at: Happening, what: str) -> None:
        self.violations.append(f"{what}: {at}")

    def _observe_commit(self, call: DriverCall) -> None:
        for change in call.changes:
            if (wrong := wrong_change(call, change, self.paused, self.jumps)) is not None:
                self._wrong(call, f"job {short_name(change.job_id)} {wrong}")
            self._observe_change(call, change)
        self.jumps.observe(call)
        if (wrong := self.messages.observe(call, self.settled)) is not None:
            self._wrong(call, wrong)
        match call.verb:
            case "reserve" | "claim":
                self._observe_reserve(call)
            case "read_back" if call.fate == "ok":
                self.delivered |= {(claim.job.id, claim.lease.token) for claim in call.answer}
            case "extend" if call.fate == "ok":
                self._observe_extend(call)
            case "settle":
                self._observe_settle(call)
            case "pause":
                self.paused |= set(call.arguments["what"])
            case "resume":
                self.paused -= set(call.arguments["what"])

    def _observe_change(self, call: DriverCall, change: RowChange) -> None:
        before, after = change.before, change.after
        if after is None:
            self._observe_removal(call, change.job_id)
            return
        self.jobs[after.id] = after
        if after.cancel_requested_at is not None and (before is None or before.cancel_requested_at is None):
            self.cancels[after.id] = call.happened_at
        is_final_before = before is not None and before.status.is_final
        if after.status.is_final and not is_final_before:
            self.finals[after.id, after.life] += 1
            self.deaths[after.id] += after.status is Status.DEAD
            if self.finals[after.id, after.life] > 1:
                self._wrong(call, f"job {short_name(after.id)} ended twice in one life")
        if after.lease_token is not None and after.lease_expires_at is not None:
            key, ends_at = (after.id, after.lease_token), call.happened_at + (after.lease_expires_at - call.at)
            left = self.expires.get(key, ends_at) - call.happened_at
            if call.verb == "extend" and left < LEASE / 4 and self._is_quiet(self.claimed[key][2]):
                self._wrong(call, f"the lease on {short_name(after.id)} was extended only {left} before it expired")
            self.expires[key] = ends_at

    def _observe_removal(self, call: DriverCall, job_id: JobId) -> None:
        self.pruned.add(job_id)
        if call.verb != "prune":
            self._wrong(call, "a job was removed by another call than prune")
        if self.deaths[job_id] > len(self.messages.published[job_id]):
            self._wrong(call, f"job {short_name(job_id)} was pruned before its dead-letter event was published")

    def _is_quiet(self, since: datetime) -> bool:
        return self.quiet_since is not None and since >= self.quiet_since

    def _observe_reserve(self, call: DriverCall) -> None:
        token = call.arguments["token"]
        for claim in [each for each in call.answer if isinstance(each, Claim)]:
            key = (claim.job.id, token)
            self.claimed[key] = call.process, claim.job.attempt_count, call.happened_at
            if call.fate == "ok":
                self.delivered.add(key)

    def _observe_extend(self, call: DriverCall) -> None:
        for lease, answer in zip(call.arguments["what"], call.answer, strict=True):
            if isinstance(answer, LeaseLost):
                self.refused.setdefault((lease.job_id, lease.token), call.happened_at)

    def _observe_settle(self, call: DriverCall) -> None:
        # Of two leases of a job in one call, only the one that the row had can have changed it.
        held = {change.job_id: change.before.lease_token for change in call.changes if change.before is not None}
        for each, answer in zip(call.arguments["what"], call.answer, strict=True):
            key = (each.lease.job_id, each.lease.token)
            if held.get(each.lease.job_id) == each.lease.token:
                self.settled[key] = each.outcome.event
                self._check_outcome(call, each)
            if isinstance(answer, Settled) and self.settled.get(key) is not each.outcome.event:
                self._wrong(call, f"{short_name(key[0])} was reported as settled, but is not")
            self._check_lease_was_held(call, key)

    def _observe_attempted_call(self, call: DriverCall) -> None:
        """Check that each token is used by one call, and that a repeated settlement has the same outcome."""
        if call.verb in {"reserve", "claim"}:
            if call.arguments["token"] in self.tokens:
                self._wrong(call, "a token was used twice")
            self.tokens.add(call.arguments["token"])
        leases = [getattr(each, "lease", each) for each in call.arguments["what"]] if call.verb in BATCH_VERBS else []
        # A settle may have outcomes of two leases of a job that was reclaimed.
        named = {(each.job_id, each.token if call.verb == "settle" else None) for each in leases}
        if len(named) < len(leases):
            self._wrong(call, "one call names a job twice")
        for each in call.arguments["what"] if call.verb == "settle" else ():
            key, event = (each.lease.job_id, each.lease.token), each.outcome.event
            if self.sent.setdefault(key, event) is not event:
                self._wrong(call, f"{short_name(key[0])} was settled with {self.sent[key]} and with {event}")

    def _check_lease_was_held(self, call: DriverCall, key: Attempt) -> None:
        ended, refused_at = self.ended.get(key), self.refused.get(key)
        # A process that wakes from a pause runs everything due at once, so it may send an outcome that it decided
        # before its extension was refused.
        if ended is not None and refused_at is not None and ended.disturbed_at + STOP_WITHIN <= refused_at < ended.at:
            self._wrong(call, f"an outcome of {short_name(key[0])} was sent though its lease was known to be lost")

    def _check_outcome(self, call: DriverCall, settlement: Settlement) -> None:
        """Check that the recorded outcome is what the handler did."""
        key, event = (settlement.lease.job_id, settlement.lease.token), settlement.outcome.event
        job, began, ended = self.jobs[key[0]], self.begun.get(key), self.ended.get(key)
        if event is Event.ACK and (ended is None or ended.error is not None or job.result is None):
            self._wrong(call, f"a success of {short_name(job.id)} was recorded, but its handler did not succeed")
        elif event is Event.ACK and began is not None and ended is not None and _is_late(job, began, ended):
            self._wrong(
                call, f"a success of {short_name(job.id)} was recorded, but its handler returned after its timeout"
            )
        elif event is Event.ACK and ended is not None and _decoded(job) != ended.result:
            self._wrong(call, f"the result of {short_name(job.id)} is not what its handler returned")
        elif (
            event in {Event.RETRY, Event.SNOOZE}
            and began is not None
            and (ended is None or ended.error is None)
            and not self._is_past_timeout(key, call.happened_at if ended is None else ended.at)
        ):
            self._wrong(call, f"a {event} of {short_name(job.id)} was recorded, but its handler did not request it")
        elif event is Event.RELEASE and began is not None and call.process not in self.stopping:
            self._wrong(call, f"{short_name(job.id)} was released by a worker that is not stopping")

    def _is_past_timeout(self, key: Attempt, at: datetime) -> bool:
        timeout = self.jobs[key[0]].timeout
        return timeout is not None and at >= self.claimed[key][2] + timeout * (1 - 2 * CLOCK_DRIFT_FRACTION)

    def _observe_began(self, began: HandlerBegan) -> None:
        key = (began.job_id, began.token)
        process, attempt, _ = self.claimed.get(key, (None, None, None))
        if key in self.begun:
            self._wrong(began, "an attempt ran twice")
        self.begun[key] = began
        if (process, attempt) != (began.process, began.attempt) or key not in self.delivered:
            self._wrong(began, "a handler began without a committed claim that its worker received")
        if not began.is_held:
            self._wrong(began, "a handler began after its lease had expired")
        if began.overlaps:
            self._wrong(began, "an earlier attempt still runs and was never stopped")

    def _observe_ended(self, ended: HandlerEnded) -> None:
        key = (ended.job_id, ended.token)
        self.ended[key] = ended
        if self.jobs[ended.job_id].type in STOPPABLE:
            for reason, since, within in self._reasons_to_stop(self.jobs[ended.job_id], self.begun[key]):
                if ended.disturbed_at < since and ended.at > since + within:
                    self._wrong(ended, f"it was not stopped {reason}")

    def _reasons_to_stop(self, job: Job, began: HandlerBegan) -> Iterator[tuple[str, datetime, timedelta]]:
        """Yield why a cooperative handler must have stopped: the reason, since when, and within what time."""
        key = (began.job_id, began.token)
        yield "when its lease expired", max(self.expires[key], began.at), timedelta(0)
        if key in self.refused:
            yield "when its lease was known to be lost", self.refused[key], STOP_WITHIN
        if job.timeout is not None and self._is_quiet(began.at):
            yield "at its timeout", began.at, job.timeout + STOP_WITHIN
        if job.cancel_requested_at is not None and job.lease_token == began.token:
            yield "by its cancel request", max(self.cancels[job.id], began.at), LEASE


def _wrong_rows(checker: Checker, store: FaultyStore, accepted: Sequence[JobId]) -> Iterator[str]:
    """Yield the violations in the final rows of the store."""
    lost_ids = [job_id for job_id in accepted if job_id not in store.rows and job_id not in checker.pruned]
    yield from (f"job {short_name(job_id)} was accepted and is lost" for job_id in lost_ids)
    for job in store.rows.values():
        attempts = store.driver.inspector.attempts([job.id])
        recorded = {attempt.token for attempt in attempts} | {job.settled_token}
        for job_id, token in checker.claimed:
            if job_id == job.id and token not in recorded and token != job.lease_token:
                yield f"job {short_name(job_id)}: the attempt under {short_name(token)} was not recorded"
        deaths = [attempt for attempt in attempts if attempt.status is Status.DEAD]
        events = store.driver.inspector.outbox([job.id])
        if len(events) != len(deaths) or len({event.event.event_id for event in events}) != len(events):
            yield f"job {short_name(job.id)} died {len(deaths)} times and has {len(events)} events"
        outcomes = Counter(attempt.outcome for attempt in attempts)
        if job.type in NEVER_FAIL and outcomes[AttemptOutcome.FAILED]:
            yield f"job {short_name(job.id)} ({job.type}) was recorded as failed"
        lost = outcomes[AttemptOutcome.LOST] + outcomes[AttemptOutcome.TIMED_OUT]  # timed out before it began
        is_first_death = job.type == "poison" and job.status is Status.DEAD and job.life == 1
        if is_first_death and (lost != job.max_attempts or lost != job.attempt_count):
            yield f"job {short_name(job.id)} is poison and died after {lost} lost attempts of {job.max_attempts}"


def _is_late(job: Job, began: HandlerBegan, ended: HandlerEnded) -> bool:
    """Return whether a sync handler returned after its timeout, allowing for clock drift."""
    return (
        job.type in SYNC
        and job.timeout is not None
        and ended.at > began.at + job.timeout * (1 + 2 * CLOCK_DRIFT_FRACTION)
    )


def _decoded(job: Job) -> Any:
    return None if job.result is None else job.codec.decode(job.result, context=b"result:%b" % job.id.bytes)
