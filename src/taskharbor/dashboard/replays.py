"""What became of the jobs of a requeue operation: how many succeeded, wait, run, or died again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from taskharbor.core.ids import JobId, Token, first_id_at
from taskharbor.core.model import AttemptOutcome, JobSummary
from taskharbor.core.operations import Operation, OperationKind, step_token
from taskharbor.core.states import Status
from taskharbor.drivers.base import Inspector

MAX_JOBS: Final = 1_000
MAX_LOOKS: Final = 20
LOOK: Final = 500


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How many requeued jobs were found in each state, and how many were looked for."""

    counts: Mapping[Status, int]
    wanted: int

    @property
    def found(self) -> int:
        return sum(self.counts.values())

    @property
    def waiting(self) -> int:
        return sum(count for status, count in self.counts.items() if status.is_waiting)


def read_result(inspector: Inspector, operation: Operation) -> ReplayResult | None:
    """Return the states of up to `MAX_JOBS` jobs of a requeue with a filter; None for any other operation.

    No index leads from an operation to its jobs. They are found by the part of its filter that a requeue leaves as it
    is, below the id that a job of the operation's time has, and by the token of its steps in their attempts.
    """
    if operation.kind is not OperationKind.REQUEUE or operation.filter is None or not operation.done:
        return None
    tokens = {step_token(operation.id, step) for step in range(operation.step)}
    wanted = replace(operation.filter, statuses=None, fingerprint=None)
    counts: Counter[Status] = Counter()
    limit = min(operation.done, MAX_JOBS)
    after: JobId | None = first_id_at(operation.created_at)
    for _ in range(MAX_LOOKS):
        page = inspector.find(wanted, limit=LOOK, after=after)
        again = {job.id: job for job in page.jobs if job.life > 1}
        counts.update(_requeued(inspector, again, tokens, limit=limit - counts.total()))
        after = page.after
        if after is None or counts.total() >= limit:
            break
    return ReplayResult(counts, operation.done)


def _requeued(
    inspector: Inspector, jobs: Mapping[JobId, JobSummary], tokens: set[Token], *, limit: int
) -> list[Status]:
    """Return the states of those *jobs* that a step with one of *tokens* requeued."""
    attempts = inspector.attempts([*jobs]) if jobs else []
    ids = dict.fromkeys(
        each.job_id for each in attempts if each.outcome is AttemptOutcome.REQUEUED and each.token in tokens
    )
    return [jobs[each].status for each in ids][:limit]
