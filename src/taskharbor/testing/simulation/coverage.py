"""Rare situations that a batch of simulations must reach, and the collector that finds them in a history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import IllegalTransition, JobNotFound, LeaseLost
from taskharbor.core.messages import parse_message
from taskharbor.core.results import Declined, Expired, RefusalReason, Refused, Settled, Skipped
from taskharbor.core.states import Event, Status
from taskharbor.testing.simulation.history import DriverCall
from taskharbor.testing.simulation.plan import LEASE, MAX_CONCURRENCY
from taskharbor.testing.simulation.workloads import STUCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.results import Settlement
    from taskharbor.testing.simulation.history import History

REQUIRED_COVERAGE: Final = frozenset(
    {
        "a stale success was refused",
        "a settlement whose reply was lost was repeated, and had been recorded",
        "a settlement that did not arrive was repeated, and is recorded",
        "a claim whose reply was lost was read back",
        "a claim that did not arrive was read back, and was not there",
        "an expired lease was reclaimed before a late success",
        "a success was recorded just before its lease expired",
        "the janitor expired a lease",
        "the janitor buried a job",
        "the janitor canceled a job",
        "a worker reclaimed an expired lease",
        "an attempt was released",
        "jobs were claimed ahead of free slots",
        "a job that was claimed ahead was released",
        "a job was requeued",
        "a PENDING job was canceled",
        "a FAILED job was canceled",
        "a PROCESSING job was canceled",
        "a final job was not canceled",
        "a forward clock jump was reported to the store",
        "a backward clock jump was reported to the store",
        "a clock jump shortened a lease",
        "an attempt lost to a clock jump was not counted",
        "a finished job was pruned",
        "an outcome arrived for a pruned job",
        "a sync handler was recorded as timed out",
        "a job was reclaimed from a sync handler that did not return",
        "the outcome of a locked row was recorded later",
        "an outcome was recorded after an unknown error",
        "a claim whose reply was lost had expired when it was read back",
    }
)

# With messages, a job is FAILED only before its first message, few outcomes arrive this late, and nothing is claimed
# ahead. Simulations in mode "polling" cover these.
_RARE_WITH_MESSAGES: Final = {
    "a FAILED job was canceled",
    "a success was recorded just before its lease expired",
    "an outcome arrived for a pruned job",
    "jobs were claimed ahead of free slots",
    "a job that was claimed ahead was released",
}
REQUIRED_MESSAGE_COVERAGE: Final = (REQUIRED_COVERAGE - _RARE_WITH_MESSAGES) | {
    "a job was sent again",
    "a message was received before its send was recorded",
    "a message was received twice in one batch",
    "a message with several jobs was claimed in part",
    "a message came again after some of its jobs had finished",
    "a stale message was deleted",
    "a message was declined, and its job is sent again",
    "a job was claimed without its message",
    "a message for a leased job was kept",
    "a message for a job of another queue was refused",
    "a send with an unknown result was left to its lock",
    "an ENQUEUED job was canceled",
}
"""The situations that a batch of simulations in mode "sqs" must reach."""


def coverage_of(history: History) -> set[str]:
    """Return which of the situations in `REQUIRED_COVERAGE` and `REQUIRED_MESSAGE_COVERAGE` occurred."""
    collector = CoverageCollector()
    for happening in history.happenings:
        if isinstance(happening, DriverCall):
            collector.observe(happening)
    return collector.seen


class CoverageCollector:
    """Collects the rare situations among the driver calls of one history."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._fates: dict[tuple[JobId, Token], str] = {}
        self._claims: dict[Token, str] = {}
        self._expired: set[tuple[JobId, Token]] = set()
        self._sending: set[tuple[JobId, int]] = set()
        self._bundles: dict[str, list[set[JobId]]] = {}
        self._ahead: set[Token] = set()

    def observe(self, call: DriverCall) -> None:
        match call.verb:
            case "reserve" | "claim":
                self._claims[call.arguments["token"]] = call.fate if call.answer else f"{call.fate}, nothing"
                self.seen |= {*_claimed(call), *self._claimed_in_part(call)} if call.is_committed else set()
                if call.is_committed and len(call.answer) > MAX_CONCURRENCY:
                    self._ahead.add(call.arguments["token"])
            case "read_back" if call.fate == "ok":
                self.seen |= set(self._read_back(call))
            case "settle":
                for number, each in enumerate(call.arguments["what"]):
                    self.seen |= set(self._settle(call, each, None if call.answer is None else call.answer[number]))
            case "expire" if call.is_committed:
                self.seen |= {*map(_reclaimed, call.answer), *_returned_attempt(call)}
                self._expired |= {(each.job_id, each.token) for each in call.answer}
            case "cancel" if call.is_committed:
                self.seen |= set(_canceled(call))
            case "requeue" | "prune" | "report_clock_jump" if call.is_committed:
                self.seen |= set(_operated(call))
            case _ if call.is_committed:
                self.seen |= set(self._observe_delivery(call))

    def _observe_delivery(self, call: DriverCall) -> Iterator[str]:
        match call.verb:
            case "dispatch":
                self._sending |= {(each.job_id, each.seq) for each in call.answer}
                if any(
                    change.before and change.before.sent_at and change.before.dispatch_at for change in call.changes
                ):
                    yield "a job was sent again"
            case "send" if call.fate != "ok":
                yield "a send with an unknown result was left to its lock"
            case "record_dispatch":
                yield from self._dispatched(call)
            case "receive":
                read = [named for each in call.answer for named in parse_message(each.body) or ()]
                if any((named.job_id, named.seq) in self._sending for named in read):
                    yield "a message was received before its send was recorded"
                if len({named.job_id for named in read}) < len(read):
                    yield "a message was received twice in one batch"
                bundles = [{named.job_id for named in parse_message(each.body) or ()} for each in call.answer]
                self._bundles[call.process] = [each for each in bundles if len(each) > 1]

    def _claimed_in_part(self, call: DriverCall) -> Iterator[str]:
        """Yield what happened to messages that name several jobs."""
        asked = dict(zip(call.arguments["what"], call.answer, strict=True)) if call.verb == "claim" else {}
        for bundle in self._bundles.get(call.process, ()):
            answers = [asked[job_id] for job_id in bundle if job_id in asked]
            if 0 < len(answers) < len(bundle):
                yield "a message with several jobs was claimed in part"
            finished = [each for each in answers if isinstance(each, Refused) and each.reason is RefusalReason.FINAL]
            if 0 < len(finished) < len(answers):
                yield "a message came again after some of its jobs had finished"

    def _dispatched(self, call: DriverCall) -> Iterator[str]:
        for each, is_done in zip(call.arguments["what"], call.answer, strict=True):
            if isinstance(each, Declined):
                yield "a message was declined, and its job is sent again" if is_done else "a stale message was deleted"
            else:
                self._sending.discard((each.dispatch.job_id, each.dispatch.seq))

    def _read_back(self, call: DriverCall) -> Iterator[str]:
        found = {claim.lease.token for claim in call.answer}
        for token in call.arguments["what"]:
            fate = self._claims.get(token)
            if fate == "lost" and token in found:
                yield "a claim whose reply was lost was read back"
            if fate == "lost" and token not in found:
                yield "a claim whose reply was lost had expired when it was read back"
            if fate == "unavailable, nothing" and token not in found:
                yield "a claim that did not arrive was read back, and was not there"

    def _settle(self, call: DriverCall, each: Settlement, answer: object) -> Iterator[str]:
        key, event = (each.lease.job_id, each.lease.token), each.outcome.event
        change = next((change for change in call.changes if change.job_id == each.lease.job_id), None)
        if isinstance(answer, Settled) and call.fate == "ok":
            yield from _repeated(self._fates.get(key, ""), is_new=change is not None)
        self._fates[key] = "skipped" if isinstance(answer, Skipped) else call.fate
        if event is Event.RELEASE and isinstance(answer, Settled) and key[1] in self._ahead:
            yield "a job that was claimed ahead was released"
        if isinstance(answer, JobNotFound):
            yield "an outcome arrived for a pruned job"
        if isinstance(answer, LeaseLost) and event is Event.ACK:
            yield "a stale success was refused"
            if key in self._expired:
                yield "an expired lease was reclaimed before a late success"
        if change is not None and event is Event.RELEASE:
            yield "an attempt was released"
        if change is not None and change.before and change.before.type == STUCK and event is Event.RETRY:
            yield "a sync handler was recorded as timed out"
        ends_at = None if change is None or change.before is None else change.before.lease_expires_at
        if event is Event.ACK and ends_at is not None and ends_at - call.at < LEASE / 3:
            yield "a success was recorded just before its lease expired"


def _repeated(fate: str, *, is_new: bool) -> Iterator[str]:
    """Yield the result of a repeated settlement whose previous call had this *fate*."""
    if not is_new and fate == "lost":
        yield "a settlement whose reply was lost was repeated, and had been recorded"
    if is_new and fate == "unavailable":
        yield "a settlement that did not arrive was repeated, and is recorded"
    if is_new and fate == "skipped":
        yield "the outcome of a locked row was recorded later"
    if fate.startswith("failed"):
        yield "an outcome was recorded after an unknown error"


def _claimed(call: DriverCall) -> Iterator[str]:
    if call.verb == "reserve" and len(call.answer) > MAX_CONCURRENCY:
        yield "jobs were claimed ahead of free slots"
    held = [
        change.before.type for change in call.changes if change.before and change.before.status is Status.PROCESSING
    ]
    if held:
        yield "a worker reclaimed an expired lease"
    if STUCK in held:
        yield "a job was reclaimed from a sync handler that did not return"
    if call.verb == "reserve" and any(
        change.before and change.before.status is Status.ENQUEUED for change in call.changes
    ):
        yield "a job was claimed without its message"
    if any(isinstance(each, Refused) and each.reason is RefusalReason.LEASED for each in call.answer):
        yield "a message for a leased job was kept"
    if any(isinstance(each, Refused) and each.reason is RefusalReason.OTHER_QUEUE for each in call.answer):
        yield "a message for a job of another queue was refused"


def _operated(call: DriverCall) -> Iterator[str]:
    names = {
        "requeue": "a job was requeued",
        "prune": "a finished job was pruned",
        "report_clock_jump": "a clock jump shortened a lease",
    }
    if call.changes:
        yield names[call.verb]
    if call.verb == "report_clock_jump":
        direction = "forward" if call.at > call.arguments["expected"] else "backward"
        yield f"a {direction} clock jump was reported to the store"


def _returned_attempt(call: DriverCall) -> Iterator[str]:
    if any(
        change.before and change.after and change.after.attempt_count < change.before.attempt_count
        for change in call.changes
    ):
        yield "an attempt lost to a clock jump was not counted"


def _reclaimed(expired: Expired) -> str:
    if expired.status is Status.DEAD:
        return "the janitor buried a job"
    return "the janitor canceled a job" if expired.status is Status.CANCELED else "the janitor expired a lease"


def _canceled(call: DriverCall) -> Iterator[str]:
    if any(isinstance(answer, IllegalTransition) for answer in call.answer):
        yield "a final job was not canceled"
    for change in call.changes:
        if change.before is not None:
            yield f"{_article(change.before.status)} {change.before.status} job was canceled"


def _article(status: Status) -> str:
    return "an" if status is Status.ENQUEUED else "a"
