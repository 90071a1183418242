"""Strategies for the arguments of calls. Each has few values, so that calls collide."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from hypothesis import strategies as st

from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId, Token, first_id_at
from taskharbor.core.model import Progress
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.testing.conformance.subject import BOOM, LEASE, LOCK, OVERDUE_AFTER, TICK

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
DAY: Final = timedelta(days=1)
NOTHING: Final = timedelta(0)
START: Final = datetime(2030, 1, 1, tzinfo=UTC)

queues = st.sampled_from(["default", "default", "default", "mail"])
types = st.sampled_from(["greet", "sweep"])
subsets_of_types = st.sampled_from([None, None, frozenset({"greet", "sweep"}), {"greet"}, {"sweep"}, frozenset[str]()])
unhandled = st.sampled_from([None, None, NOTHING, SECOND, MINUTE])
workers = st.sampled_from(["ann", "bob"])
priorities = st.integers(-1, 1)
delays = st.sampled_from([NOTHING, NOTHING, SECOND, LEASE, MINUTE])
offsets = st.sampled_from([NOTHING, -MINUTE, SECOND, MINUTE])
leases = st.sampled_from([LEASE, SECOND, MINUTE])
locks = st.sampled_from([LOCK, SECOND])
limits = st.integers(1, 3)
moves = st.sampled_from([LEASE, MINUTE, TICK, SECOND, LEASE - TICK, OVERDUE_AFTER + TICK, NOTHING, DAY])
jumps = st.sampled_from([MINUTE, -MINUTE, LEASE, -SECOND, DAY, -DAY])
reports = st.lists(st.tuples(st.sampled_from([NOTHING, TICK, SECOND / 2]), leases), min_size=1, max_size=2)
flags = st.booleans()
mostly = st.sampled_from([True, True, True, False])
rarely = st.sampled_from([False, False, True])

one = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5])
"""An index into a list of known items. 0 is the newest and the most frequent, so that one job sees many calls."""
some = st.lists(one, min_size=1, max_size=3, unique=True)

new_jobs = st.fixed_dictionaries(
    {
        "type": types,
        "queue": queues,
        "payload": st.sampled_from([b"{}", b"[1]"]),
        "created_at": st.sampled_from([START, START + SECOND, START - DAY]),
        "max_attempts": st.sampled_from([3, 1, 2]),
        "priority": priorities,
        "timeout": st.sampled_from([None, LEASE]),
        "idempotency_key": st.sampled_from([None, None, None, "a", "b", "c"]),
        "digest": st.sampled_from([b"one", b"one", b"two"]),
        "metadata": st.sampled_from([{}, {"tenant": "7", "ä": "…"}, {"schedule": "nightly"}]),
    }
)
dues = st.one_of(
    st.fixed_dictionaries({"delay": delays}),
    st.fixed_dictionaries({"scheduled_for": offsets}),  # relative to now, which only the machine knows
)
batches = st.lists(st.tuples(new_jobs, dues), min_size=1, max_size=2)

_TIMED_OUT: Final = Failure(type="taskharbor.JobTimedOut", message="too long")
failures = st.sampled_from([BOOM, None, _TIMED_OUT, Failure(message="no type"), Failure()])
outcomes = st.one_of(
    st.builds(Outcome.retry, after=delays, failure=failures),
    st.builds(Outcome.fail, st.sampled_from(["hopeless", ""]), failure=failures),
    st.builds(Outcome.release, bound=st.none() | st.integers(0, 2)),
    st.builds(Outcome.snooze, after=delays),
    st.builds(Outcome.ack, st.sampled_from([None, b"42"])),
    st.builds(Outcome.cancel, st.sampled_from([None, "off", ""])),
)
progress = st.builds(Progress, st.integers(0, 3), st.none() | st.just(3), st.sampled_from(["", 'at "ä"']))
statuses = st.none() | st.frozensets(st.sampled_from(Status))
filters = st.fixed_dictionaries(
    {
        "queue": st.none() | queues,
        "type": st.none() | types,
        "statuses": statuses,
        "since": st.sampled_from([None, START, START + TICK]),
        "until": st.sampled_from([None, START + SECOND, START]),
        "tag": st.sampled_from([None, None, None, ("tenant", "7"), ("ä", "…"), ("tenant", "8")]),
        "fingerprint": st.sampled_from([None, None, None, None, BOOM.fingerprint, ""]),
        "worker": st.sampled_from([None, None, None, "w1"]),
        "schedule": st.sampled_from([None, None, None, "nightly"]),
        "id_prefix": st.sampled_from([None, None, None, str(first_id_at(START))[:4]]),
    }
)
api_keys = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["deploy", "ops"]),
        "digest": st.sampled_from([b"\x00", b"\xff" * 32]),
        "scopes": st.sampled_from([(), ("read",), ("read", "write")]),
        "created_at": st.just(START),
        "expires_at": st.sampled_from([None, START + DAY]),
    }
)
audit_entries = st.fixed_dictionaries(
    {
        "actor": workers,
        "action": st.sampled_from(["cancel", "requeue"]),
        "target": st.sampled_from(["job 1", "ä"]),
        "detail": st.sampled_from([{}, {"why": "…"}]),
    }
)
schedules = st.fixed_dictionaries(
    {
        "cron": st.sampled_from(["0 2 * * *", "0 * * * *"]),
        "timezone": st.sampled_from(["UTC", "UTC", "Asia/Tokyo"]),
        "type": types,
        "queue": queues,
        "payload": st.sampled_from([b"{}", b"[1]"]),
        "options": st.sampled_from([{}, {"priority": "3"}]),
    }
)


class Names:
    """Creates ids and tokens that are the same in every run and not in ascending order."""

    def __init__(self) -> None:
        self._made = 0

    def job_id(self) -> JobId:
        return JobId(self._next(first_id_at(START).int))  # the jobs are created around that time

    def token(self) -> Token:
        return Token(self._next(0x19_0000_0000 << 80 | 0x4 << 76 | 0b10 << 62))

    def _next(self, first: int) -> UUID:
        self._made += 1
        tail = self._made * 0x9E3779B97F4A7C15F39C % (1 << 74)
        high, low = tail >> 62, tail & ((1 << 62) - 1)
        return UUID(int=first | high << 64 | low)


def of(pool: list[Any], picks: list[int]) -> list[Any]:
    """Return the picked items of *pool*, newest first, without duplicates."""
    return list(dict.fromkeys(pool[-1 - pick % len(pool)] for pick in picks)) if pool else []
