"""Checks whether each change of a job's row is a legal transition."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taskharbor.core.outcome import MAX_RELEASES
from taskharbor.core.states import Event, Status, next_statuses, status_after
from taskharbor.testing.simulation.history import RECLAIMING_VERBS
from taskharbor.testing.simulation.plan import UNHANDLED_AFTER
from taskharbor.testing.simulation.workloads import BACKOFF, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from taskharbor.core.model import Job
    from taskharbor.core.results import Settlement
    from taskharbor.testing.simulation.checker import ClockJumpChecker
    from taskharbor.testing.simulation.history import DriverCall, RowChange

MIN_RETRY_DELAY: Final = BACKOFF.base * (1 - BACKOFF.jitter)


def wrong_change(call: DriverCall, change: RowChange, paused: Collection[str], jumps: ClockJumpChecker) -> str | None:
    """Return what is wrong with a row change that *call* made, or None."""
    after, before = change.after, change.before
    if after is None and before is not None and call.verb == "prune":
        return "; ".join(_pruned(call, before)) or None
    if after is None or before is None:
        return None if call.verb == "insert" else "was created or removed by a call that does neither"
    if call.verb not in _RULES:
        return "changed by a call that changes no job"
    rules = [*_row_violations(before, after, call.verb), *_RULES[call.verb](call, before, after)]
    if call.verb in {"reserve", "claim", "dispatch"} and after.queue in paused:
        rules.append("was claimed from a paused queue")
    if call.verb in RECLAIMING_VERBS:
        rules += _attempt_violations(call, before, after, jumps)
    return "; ".join(rules) or None


def _attempt_violations(call: DriverCall, before: Job, after: Job, jumps: ClockJumpChecker) -> list[str]:
    """Return what is wrong with the attempt count of a job that was claimed, reclaimed or expired."""
    counted, is_claimed = jumps.counted_attempts(before), call.verb != "expire"
    is_exhausted = counted >= before.max_attempts
    return _broken(
        {
            "was claimed with its attempts exhausted": not (is_claimed and is_exhausted),
            "was not ended with its attempts exhausted": is_claimed or not is_exhausted or after.status.is_final,
            "has a wrong attempt count": after.attempt_count == counted + is_claimed,
            "was reclaimed during a clock hold": not jumps.forbids(call, before),
        }
    )


def _pruned(call: DriverCall, before: Job) -> list[str]:
    ended_at = before.completed_at
    return _broken(
        {
            "was pruned before it finished": before.status in {Status.SUCCEEDED, Status.CANCELED},
            "was pruned too soon": ended_at is not None and call.at - ended_at >= call.arguments["older_than"],
        }
    )


def _row_violations(before: Job, after: Job, verb: str) -> list[str]:
    """Return which rules the row breaks that hold after every call."""
    has_lease = after.lease_token is not None
    is_canceling = before.cancel_requested_at is not None and verb != "requeue"
    rules = {
        "has a lease but is not PROCESSING, or vice versa": has_lease is (after.status is Status.PROCESSING),
        "has half a lease": has_lease is (after.lease_expires_at is not None),
        "is final without an end time, or vice versa": after.status.is_final is (after.completed_at is not None),
        "was tried too often": after.attempt_count <= after.max_attempts,
        "is waiting with its attempts exhausted": not (after.status.is_waiting and after.is_exhausted),
        "is waiting though its cancel was requested": not (is_canceling and after.status.is_waiting),
        "left a final state": not before.status.is_final or verb == "requeue",
        "changed its life without a requeue": after.life == before.life or verb == "requeue",
    }
    return [rule for rule, holds in rules.items() if not holds]


def _reserve(call: DriverCall, before: Job, after: Job) -> list[str]:
    is_due = before.scheduled_for <= call.at if before.status.is_waiting else _is_expired(before, call.at)
    return _broken(
        {
            "was claimed before it was due, or while its lease was valid": is_due,
            "was claimed though its cancel was requested": before.cancel_requested_at is None,
            "has another token than requested": after.lease_token == call.arguments["token"],
            "was claimed from an illegal state": before.status.is_waiting or before.status is Status.PROCESSING,
            "was claimed without a handler too soon": before.type != UNKNOWN or _is_unhandled_long_enough(call, before),
            "was claimed without its message too soon": before.status is not Status.ENQUEUED
            or call.verb == "claim"
            or call.at - before.scheduled_for > call.arguments["overdue_after"],
        }
    )


def _is_unhandled_long_enough(call: DriverCall, job: Job) -> bool:
    """Return whether a job without a handler has waited for another worker long enough."""
    return job.status.is_waiting and call.at - job.scheduled_for >= UNHANDLED_AFTER


def _claim(call: DriverCall, before: Job, after: Job) -> list[str]:
    is_delivered = before.status in {Status.ENQUEUED, Status.PROCESSING}
    rules = {
        "was claimed before it was dispatched": is_delivered,
        "was claimed by a message of another queue": before.queue == call.arguments["queue"],
        "was claimed by a message but is not marked as sent": after.sent_at == (before.sent_at or call.at),
    }
    return [*_reserve(call, before, after), *_broken(rules)]


def _dispatch(call: DriverCall, before: Job, after: Job) -> list[str]:
    is_free = before.dispatch_at is None or before.dispatch_at <= call.at
    return _broken(
        {
            "was dispatched from an illegal state": before.status.is_waiting,
            "was dispatched into an illegal state": after.status is Status.ENQUEUED,
            "was dispatched before it was due": before.scheduled_for <= call.at,
            "was dispatched while locked by another enqueuer": is_free,
            "was dispatched without a new sequence number": after.sends == before.sends + 1,
        }
    )


def _dispatched(_call: DriverCall, before: Job, after: Job) -> list[str]:
    is_kept = (before.status, before.sends) == (after.status, after.sends) == (Status.ENQUEUED, before.sends)
    return _broken({"changed state when its dispatch was recorded": is_kept})


def _extend(call: DriverCall, before: Job, after: Job) -> list[str]:
    tokens = {lease.token for lease in call.arguments["what"] if lease.job_id == before.id}
    return _broken(
        {
            "was extended with another token": before.lease_token in tokens and after.lease_token == before.lease_token,
            "was extended after its lease expired": not _is_expired(before, call.at),
            "changed state by an extend": after.status is before.status,
        }
    )


def _settle(call: DriverCall, before: Job, after: Job) -> list[str]:
    # A call may have outcomes of two leases of a job. The one that changed the row is that of its token.
    settlements: list[Settlement] = [each for each in call.arguments["what"] if each.lease.job_id == before.id]
    settlement = next((each for each in settlements if each.lease.token == before.lease_token), settlements[0])
    event, delay = settlement.outcome.event, after.scheduled_for - call.at
    has_begun = settlement.outcome.bound is not None
    is_free = event is Event.RELEASE and not (has_begun and before.releases >= MAX_RELEASES)
    is_uncounted = event is Event.SNOOZE or is_free
    return _broken(
        {
            "was settled with another token": before.lease_token == settlement.lease.token,
            "was settled after its lease expired": not _is_expired(before, call.at),
            "has a state that its outcome does not lead to": after.status is _landing(event, before, after),
            "has a wrong attempt count": after.attempt_count == before.attempt_count - is_uncounted,
            "is retried too soon or too late": event is not Event.RETRY
            or after.status.is_final
            or MIN_RETRY_DELAY <= delay <= BACKOFF.cap,
            "has a wrong number of releases": after.releases
            == before.releases + (event is Event.RELEASE and has_begun),
        }
    )


def _landing(event: Event, before: Job, after: Job) -> Status:
    """Return the state that *event* leads to, from the row before it and the attempts counted after it."""
    return status_after(
        event,
        sent=before.sent_at is not None,
        exhausted=after.is_exhausted,
        cancel_requested=before.cancel_requested_at is not None,
    )


def _expire(call: DriverCall, before: Job, after: Job) -> list[str]:
    return _broken(
        {
            "lost a valid lease": before.lease_token is not None and _is_expired(before, call.at),
            "has a state that an expired lease does not lead to": after.status is _landing(Event.EXPIRE, before, after),
        }
    )


def _cancel(_call: DriverCall, before: Job, after: Job) -> list[str]:
    is_running = before.status is Status.PROCESSING
    return _broken({"was canceled wrongly": after.status is (before.status if is_running else Status.CANCELED)})


def _requeue(_call: DriverCall, before: Job, after: Job) -> list[str]:
    return _broken(
        {
            "was requeued from an illegal state": bool(next_statuses(before.status, Event.REQUEUE)),
            "did not get a new life": after.life == before.life + 1 and after.status is Status.PENDING,
        }
    )


def _clock_jumped(call: DriverCall, before: Job, after: Job) -> list[str]:
    shortened, end = call.at + call.arguments["lease"], before.lease_expires_at
    is_shortened = end is not None and end > shortened == after.lease_expires_at
    return _broken(
        {
            "was changed by a clock jump without a lease to shorten": is_shortened,
            "was changed by a clock jump beyond its lease": after == replace(before, lease_expires_at=shortened),
        }
    )


def _bury(_call: DriverCall, _begin_call: Job, _end_call: Job) -> list[str]:
    return ["had to be buried by the janitor"]


def _is_expired(job: Job, now: datetime) -> bool:
    return job.lease_expires_at is not None and job.lease_expires_at <= now


def _broken(rules: dict[str, bool]) -> list[str]:
    return [rule for rule, holds in rules.items() if not holds]


_RULES: Final[dict[str, Callable[[DriverCall, Job, Job], list[str]]]] = {
    "reserve": _reserve,
    "claim": _claim,
    "dispatch": _dispatch,
    "record_dispatch": _dispatched,
    "extend": _extend,
    "settle": _settle,
    "expire": _expire,
    "report_clock_jump": _clock_jumped,
    "cancel": _cancel,
    "requeue": _requeue,
    "bury": _bury,
}
