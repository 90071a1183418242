"""Which changes of a row are right."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
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

SHORTEST: Final = BACKOFF.base * (1 - BACKOFF.jitter)
NOTHING: Final = timedelta(0)


def wrong_move(call: DriverCall, move: RowChange, paused: Collection[str], jumps: ClockJumpChecker) -> str | None:
    """Return what is wrong with what *call* did to one row; None, if nothing is."""
    after, before = move.after, move.before
    if after is None and before is not None and call.verb == "prune":
        return "; ".join(_pruned(call, before)) or None
    if after is None or before is None:
        return None if call.verb == "insert" else "came or went by itself"
    if call.verb not in _RULES:
        return "changed by a call that changes no job"
    rules = [*_of_row(before, after, call.verb), *_RULES[call.verb](call, before, after)]
    if call.verb in {"reserve", "claim", "dispatch"} and after.queue in paused:
        rules.append("was taken from a paused queue")
    if call.verb in RECLAIMING_VERBS:
        rules += _of_count(call, before, after, jumps)
    return "; ".join(rules) or None


def _of_count(call: DriverCall, before: Job, after: Job, jumps: ClockJumpChecker) -> list[str]:
    """Return what is wrong with the attempts of a job that was taken, or taken from somebody."""
    counted, is_taken = jumps.counted(before), call.verb != "expire"
    is_spent = counted >= before.max_attempts
    return _broken(
        {
            "was taken though it was spent": not (is_taken and is_spent),
            "lives on though it is spent": is_taken or not is_spent or after.status.is_final,
            "counts its attempts wrong": after.attempt_count == counted + is_taken,
            "was taken over though the clock had just jumped": not jumps.forbid(call, before),
        }
    )


def _pruned(call: DriverCall, before: Job) -> list[str]:
    ended_at = before.completed_at
    return _broken(
        {
            "was pruned though it was not done": before.status in {Status.SUCCEEDED, Status.CANCELED},
            "was pruned too soon": ended_at is not None and call.at - ended_at >= call.asked["older_than"],
        }
    )


def _of_row(before: Job, after: Job, verb: str) -> list[str]:
    """Return what no row may look like, whatever happened to it."""
    has_lease = after.lease_token is not None
    is_wanted_gone = before.cancel_requested_at is not None and verb != "requeue"
    rules = {
        "has a lease and is not processed, or the other way round": has_lease is (after.status is Status.PROCESSING),
        "has half a lease": has_lease is (after.lease_expires_at is not None),
        "is final without an end, or the other way round": after.status.is_final is (after.completed_at is not None),
        "was tried too often": after.attempt_count <= after.max_attempts,
        "waits and is spent": not (after.status.is_waiting and after.is_exhausted),
        "waits though its cancel was requested": not (is_wanted_gone and after.status.is_waiting),
        "left a final state": not before.status.is_final or verb == "requeue",
        "changed its life": after.life == before.life or verb == "requeue",
    }
    return [rule for rule, holds in rules.items() if not holds]


def _reserve(call: DriverCall, before: Job, after: Job) -> list[str]:
    is_due = before.scheduled_for <= call.at if before.status.is_waiting else _is_over(before, call.at)
    return _broken(
        {
            "was taken before it was due, or from a good lease": is_due,
            "was taken though its cancel was requested": before.cancel_requested_at is None,
            "has another token than was asked for": after.lease_token == call.asked["token"],
            "was taken from where it cannot be": before.status.is_waiting or before.status is Status.PROCESSING,
            "was taken though others might handle it": before.type != UNKNOWN or _is_left(call, before),
            "was taken while its message may come": before.status is not Status.ENQUEUED
            or call.verb == "claim"
            or call.at - before.scheduled_for > call.asked["overdue_after"],
        }
    )


def _is_left(call: DriverCall, job: Job) -> bool:
    """Return whether a job without a handler has waited for another worker long enough."""
    return job.status.is_waiting and call.at - job.scheduled_for >= UNHANDLED_AFTER


def _claim(call: DriverCall, before: Job, after: Job) -> list[str]:
    is_delivered = before.status in {Status.ENQUEUED, Status.PROCESSING}
    rules = {
        "was claimed though nobody was told of it": is_delivered,
        "was claimed by a message of another queue": before.queue == call.asked["queue"],
        "was claimed by a message and does not count as sent": after.sent_at == (before.sent_at or call.at),
    }
    return [*_reserve(call, before, after), *_broken(rules)]


def _dispatch(call: DriverCall, before: Job, after: Job) -> list[str]:
    is_free = before.dispatch_at is None or before.dispatch_at <= call.at
    return _broken(
        {
            "was dispatched from where it cannot be": before.status.is_waiting,
            "was dispatched to where it cannot go": after.status is Status.ENQUEUED,
            "was dispatched before it was due": before.scheduled_for <= call.at,
            "was dispatched while another does that": is_free,
            "was dispatched under an old number": after.sends == before.sends + 1,
        }
    )


def _dispatched(_call: DriverCall, before: Job, after: Job) -> list[str]:
    is_kept = (before.status, before.sends) == (after.status, after.sends) == (Status.ENQUEUED, before.sends)
    return _broken({"was moved by what became of its message": is_kept})


def _extend(call: DriverCall, before: Job, after: Job) -> list[str]:
    tokens = {lease.token for lease in call.asked["what"] if lease.job_id == before.id}
    return _broken(
        {
            "was extended by a stranger": before.lease_token in tokens and after.lease_token == before.lease_token,
            "was extended when it was over": not _is_over(before, call.at),
            "was moved by an extend": after.status is before.status,
        }
    )


def _settle(call: DriverCall, before: Job, after: Job) -> list[str]:
    settlement: Settlement = next(each for each in call.asked["what"] if each.lease.job_id == before.id)
    event, delay = settlement.outcome.event, after.scheduled_for - call.at
    gives_back = event is Event.SNOOZE or (event is Event.RELEASE and before.releases < MAX_RELEASES)
    return _broken(
        {
            "was settled by a stranger": before.lease_token == settlement.lease.token,
            "was settled when its lease was over": not _is_over(before, call.at),
            "went where its outcome does not lead": after.status is _landing(event, before, after),
            "counts its attempts wrong": after.attempt_count == before.attempt_count - gives_back,
            "is tried again too soon or too late": event is not Event.RETRY
            or after.status.is_final
            or SHORTEST <= delay <= BACKOFF.cap,
            "was not counted as released": after.releases == before.releases + (event is Event.RELEASE),
        }
    )


def _landing(event: Event, before: Job, after: Job) -> Status:
    """Return the one state in which *event* leaves a job, by what it was and by the attempts that count now."""
    return status_after(
        event,
        sent=before.sent_at is not None,
        exhausted=after.is_exhausted,
        cancel_requested=before.cancel_requested_at is not None,
    )


def _expire(call: DriverCall, before: Job, after: Job) -> list[str]:
    return _broken(
        {
            "lost a lease that was good": before.lease_token is not None and _is_over(before, call.at),
            "went where no ended lease leads": after.status is _landing(Event.EXPIRE, before, after),
        }
    )


def _cancel(_call: DriverCall, before: Job, after: Job) -> list[str]:
    is_running = before.status is Status.PROCESSING
    return _broken({"was canceled wrongly": after.status is (before.status if is_running else Status.CANCELED)})


def _requeue(_call: DriverCall, before: Job, after: Job) -> list[str]:
    return _broken(
        {
            "was requeued from where it cannot be": bool(next_statuses(before.status, Event.REQUEUE)),
            "has no new life": after.life == before.life + 1 and after.status is Status.PENDING,
        }
    )


def _clock_jumped(call: DriverCall, before: Job, after: Job) -> list[str]:
    cut, end = call.at + call.asked["lease"], before.lease_expires_at
    is_cut = end is not None and end > cut == after.lease_expires_at
    return _broken(
        {
            "was cut by a jump of the clock, and had no such lease": is_cut,
            "lost more than that by a jump of the clock": after == replace(before, lease_expires_at=cut),
        }
    )


def _bury(_call: DriverCall, _before: Job, _after: Job) -> list[str]:
    return ["had to be buried"]


def _is_over(job: Job, now: datetime) -> bool:
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
