"""Rare things that a batch of worlds must have seen: what never happened was never tested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import IllegalTransition, JobNotFound, LeaseLost
from taskharbor.core.messages import parse_message
from taskharbor.core.results import Declined, Expired, RefusalReason, Refused, Settled, Skipped
from taskharbor.core.states import Event, Status
from taskharbor.testing.simulation.history import DriverCall
from taskharbor.testing.simulation.plan import LEASE
from taskharbor.testing.simulation.workloads import STUCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.results import Settlement
    from taskharbor.testing.simulation.history import History

REQUIRED_COVERAGE: Final = frozenset(
    {
        "a stale success was refused",
        "a settlement whose reply was lost was repeated, and had been heard",
        "a settlement that did not arrive was repeated, and is recorded",
        "a claim whose reply was lost was read back",
        "a claim that did not arrive was read back, and was not there",
        "an ended lease was brought back before a late success",
        "a success came just before its lease ended",
        "the janitor brought back a job",
        "the janitor buried a job",
        "the janitor canceled a job",
        "a worker took over an ended lease",
        "an attempt was released",
        "a job was requeued",
        "a PENDING job was canceled",
        "a FAILED job was canceled",
        "a PROCESSING job was canceled",
        "a final job was not canceled",
        "the store was told that its clock jumped ahead",
        "the store was told that its clock jumped back",
        "a jump of the clock cut a lease",
        "an attempt was lost to the clock, and given back",
        "a finished job was pruned",
        "an outcome came for a job that was pruned",
        "a sync handler was recorded as timed out",
        "a job was taken from a sync handler that did not return",
        "the outcome of a locked row was recorded later",
        "an outcome was recorded after an unknown error",
        "a claim whose reply was lost was over when it was read back",
    }
)

# With messages a job is FAILED only before its first one, and few outcomes come that late. Worlds without see them.
_RARE_WITH_MESSAGES: Final = {
    "a FAILED job was canceled",
    "a success came just before its lease ended",
    "an outcome came for a job that was pruned",
}
REQUIRED_MESSAGE_COVERAGE: Final = (REQUIRED_COVERAGE - _RARE_WITH_MESSAGES) | {
    "a job was sent again",
    "a message came before its sending was known",
    "a message came twice in one batch",
    "a message of a job that moved on was deleted",
    "a message was declined, and its job rings again",
    "a job was taken without its message",
    "a message for a job that is leased was left",
    "a message for a job of another queue was refused",
    "a send that may have worked was left to its lock",
    "an ENQUEUED job was canceled",
}
"""What a batch of worlds with messages must have seen."""


def coverage_of(history: History) -> set[str]:
    """Return which of the `REQUIRED_COVERAGE` things happened."""
    watcher = CoverageCollector()
    for happening in history.happenings:
        if isinstance(happening, DriverCall):
            watcher.take(happening)
    return watcher.seen


class CoverageCollector:
    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._fates: dict[tuple[JobId, Token], str] = {}
        self._claims: dict[Token, str] = {}
        self._expired: set[tuple[JobId, Token]] = set()
        self._sending: set[tuple[JobId, int]] = set()

    def take(self, call: DriverCall) -> None:
        match call.verb:
            case "reserve" | "claim":
                self._claims[call.asked["token"]] = call.fate if call.answer else f"{call.fate}, nothing"
                self.seen |= set(_claimed(call)) if call.is_committed else set()
            case "read_back" if call.fate == "ok":
                self.seen |= set(self._read_back(call))
            case "settle":
                for number, each in enumerate(call.asked["what"]):
                    self.seen |= set(self._settle(call, each, None if call.answer is None else call.answer[number]))
            case "expire" if call.is_committed:
                self.seen |= {*map(_reclaimed, call.answer), *_returned_attempt(call)}
                self._expired |= {(each.job_id, each.token) for each in call.answer}
            case "cancel" if call.is_committed:
                self.seen |= set(_canceled(call))
            case "requeue" | "prune" | "report_clock_jump" if call.is_committed:
                self.seen |= set(_beside(call))
            case _ if call.is_committed:
                self.seen |= set(self._ring(call))

    def _ring(self, call: DriverCall) -> Iterator[str]:
        match call.verb:
            case "dispatch":
                self._sending |= {(each.job_id, each.seq) for each in call.answer}
                if any(move.before and move.before.sent_at and move.before.dispatch_at for move in call.moves):
                    yield "a job was sent again"
            case "send" if call.fate != "ok":
                yield "a send that may have worked was left to its lock"
            case "record_dispatch":
                yield from self._dispatched(call)
            case "receive":
                read = [message for each in call.answer if (message := parse_message(each.body)) is not None]
                if any((message.job_id, message.seq) in self._sending for message in read):
                    yield "a message came before its sending was known"
                if len({message.job_id for message in read}) < len(read):
                    yield "a message came twice in one batch"

    def _dispatched(self, call: DriverCall) -> Iterator[str]:
        for each, is_done in zip(call.asked["what"], call.answer, strict=True):
            if isinstance(each, Declined):
                what = "was declined, and its job rings again" if is_done else "of a job that moved on was deleted"
                yield f"a message {what}"
            else:
                self._sending.discard((each.dispatch.job_id, each.dispatch.seq))

    def _read_back(self, call: DriverCall) -> Iterator[str]:
        found = {claim.lease.token for claim in call.answer}
        for token in call.asked["what"]:
            fate = self._claims.get(token)
            if fate == "lost" and token in found:
                yield "a claim whose reply was lost was read back"
            if fate == "lost" and token not in found:
                yield "a claim whose reply was lost was over when it was read back"
            if fate == "unavailable, nothing" and token not in found:
                yield "a claim that did not arrive was read back, and was not there"

    def _settle(self, call: DriverCall, each: Settlement, answer: object) -> Iterator[str]:
        key, event = (each.lease.job_id, each.lease.token), each.outcome.event
        move = next((move for move in call.moves if move.job_id == each.lease.job_id), None)
        if isinstance(answer, Settled) and call.fate == "ok":
            yield from _repeated(self._fates.get(key, ""), is_new=move is not None)
        self._fates[key] = "skipped" if isinstance(answer, Skipped) else call.fate
        if isinstance(answer, JobNotFound):
            yield "an outcome came for a job that was pruned"
        if isinstance(answer, LeaseLost) and event is Event.ACK:
            yield "a stale success was refused"
            if key in self._expired:
                yield "an ended lease was brought back before a late success"
        if move is not None and event is Event.RELEASE:
            yield "an attempt was released"
        if move is not None and move.before and move.before.type == STUCK and event is Event.RETRY:
            yield "a sync handler was recorded as timed out"
        ends_at = None if move is None or move.before is None else move.before.lease_expires_at
        if event is Event.ACK and ends_at is not None and ends_at - call.at < LEASE / 3:
            yield "a success came just before its lease ended"


def _repeated(fate: str, *, is_new: bool) -> Iterator[str]:
    """Yield what became of a settlement that is answered now, and had this *fate* the last time."""
    if not is_new and fate == "lost":
        yield "a settlement whose reply was lost was repeated, and had been heard"
    if is_new and fate == "unavailable":
        yield "a settlement that did not arrive was repeated, and is recorded"
    if is_new and fate == "skipped":
        yield "the outcome of a locked row was recorded later"
    if fate.startswith("failed"):
        yield "an outcome was recorded after an unknown error"


def _claimed(call: DriverCall) -> Iterator[str]:
    held = [move.before.type for move in call.moves if move.before and move.before.status is Status.PROCESSING]
    if held:
        yield "a worker took over an ended lease"
    if STUCK in held:
        yield "a job was taken from a sync handler that did not return"
    if call.verb == "reserve" and any(move.before and move.before.status is Status.ENQUEUED for move in call.moves):
        yield "a job was taken without its message"
    if any(isinstance(each, Refused) and each.reason is RefusalReason.LEASED for each in call.answer):
        yield "a message for a job that is leased was left"
    if any(isinstance(each, Refused) and each.reason is RefusalReason.OTHER_QUEUE for each in call.answer):
        yield "a message for a job of another queue was refused"


def _beside(call: DriverCall) -> Iterator[str]:
    moved = {
        "requeue": "a job was requeued",
        "prune": "a finished job was pruned",
        "report_clock_jump": "a jump of the clock cut a lease",
    }
    if call.moves:
        yield moved[call.verb]
    if call.verb == "report_clock_jump":
        yield f"the store was told that its clock jumped {'ahead' if call.at > call.asked['expected'] else 'back'}"


def _returned_attempt(call: DriverCall) -> Iterator[str]:
    if any(move.before and move.after and move.after.attempt_count < move.before.attempt_count for move in call.moves):
        yield "an attempt was lost to the clock, and given back"


def _reclaimed(expired: Expired) -> str:
    if expired.status is Status.DEAD:
        return "the janitor buried a job"
    return "the janitor canceled a job" if expired.status is Status.CANCELED else "the janitor brought back a job"


def _canceled(call: DriverCall) -> Iterator[str]:
    if any(isinstance(answer, IllegalTransition) for answer in call.answer):
        yield "a final job was not canceled"
    for move in call.moves:
        if move.before is not None:
            yield f"{_article(move.before.status)} {move.before.status} job was canceled"


def _article(status: Status) -> str:
    return "an" if status is Status.ENQUEUED else "a"
