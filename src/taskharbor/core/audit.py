"""What `taskharbor audit` checks: the invariants that a store's rows can show, by number, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.core.ids import JobId

INVARIANTS: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "no accepted job is missing, except by retention",
        5: "a job is attempted at most max_attempts times in each life",
        6: "a job's history is a path through the transition table",
        7: "a final state changes only by a requeue, which is recorded",
        8: "each life has exactly one final event",
        11: "every death has exactly one dead-letter event",
        12: "nothing runs before it is due, while its queue is paused, or after its cancel was committed",
        13: "a job has a lease exactly while it is PROCESSING, and each token is new",
        15: "one job per queue and idempotency key",
        16: "one job per schedule and fire time",
        17: "releases count no attempt, and are bounded",
        21: "no waiting job is exhausted",
        23: "one row per job id, over all partitions",
        24: "a requested cancel never leads back to waiting",
    }
)
"""The numbers are those of docs/guarantees.md. The others concern time or behavior, which no row shows."""


class AuditPart(StrEnum):
    """A table that is audited, in this order."""

    JOBS = "jobs"
    ATTEMPTS = "attempts"
    EVENTS = "events"
    KEYS = "keys"
    RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Violation:
    """A job that breaks an invariant."""

    invariant: int
    job_id: JobId
    detail: str


@dataclass(frozen=True, slots=True)
class AuditPage:
    """The result of one read: the number of rows that were checked, and where the next page begins.

    ``after`` is None if there are no more rows.
    """

    rows: int
    violations: tuple[Violation, ...]
    after: JobId | None
