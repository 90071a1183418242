"""Bulk operations: preview and create them, and perform their steps at their rate.

Janitors, workers and the CLI perform steps. The store decides which caller performs a step (`Operations.perform`), so
any number of processes may try, and any of them may die.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from taskharbor.cancellation import report_canceled
from taskharbor.core.errors import InvalidRequest, OperationConflict, OperationNotFound, Problem, StoreUnavailable
from taskharbor.core.ids import Token, new_token
from taskharbor.core.model import AuditEntry
from taskharbor.core.operations import (
    NewOperation,
    Operation,
    OperationId,
    OperationKind,
    OperationOptions,
    OperationState,
    OperationStep,
    filter_to_json,
    operation_id_of,
    sort_refusals,
)
from taskharbor.core.request import validate_change
from taskharbor.core.states import Status
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.observability.failure_log import FailureLog
from taskharbor.observability.hook_caller import NO_HOOKS
from taskharbor.outbox import close_events
from taskharbor.runtime import NO_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary
    from taskharbor.core.results import JobFilter
    from taskharbor.drivers.base import Driver
    from taskharbor.observability.hook_caller import HookCaller

_LOG: Final = logging.getLogger("taskharbor.janitor")
START_DELAY: Final = timedelta(seconds=5)
"""How long a new operation can be undone by default: until then, it has changed no job."""
RETENTION: Final = timedelta(days=30)
"""How long operations are kept after their end."""
MAX_COUNTED: Final = 10_000
"""How many jobs a preview counts."""
MAX_SAMPLE: Final = 5
MAX_PAGES: Final = 20
"""How many pages a preview or a step reads at most: a filter may match few of many jobs."""
STEP_SPAN: Final = timedelta(seconds=0.25)
"""The time in which the jobs of one step are due, at the rate of the operation."""
CATCH_UP: Final = timedelta(seconds=5)
"""How much of the time in which no process performed steps is made up for. Its jobs exceed the rate."""
IDLE: Final = timedelta(seconds=1)
"""How often each process checks for new operations."""
TURN: Final = timedelta(seconds=2)
"""How long one process performs all steps before another may take over, also if the first one died."""
TURN_CHECK: Final = timedelta(seconds=0.25)
MAX_UNFINISHED: Final = 100
RETRY_SECONDS: Final = 10.0
"""After how long a process retries an operation whose step it could not perform. Others are performed meanwhile."""
MIN_RATE: Final = 0.01
MAX_RATE: Final = 1_000_000.0
"""The rate of an operation, in jobs per second: at least, and at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """How many jobs an operation would change; if *is_capped*, there may be more. *sample* are some of them."""

    matched: int
    is_capped: bool
    sample: tuple[JobSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRequest:
    """An operation as a person or a program requests it: on the jobs of *filter*, or on *job_ids*."""

    kind: OperationKind
    by: str
    reason: str = ""
    filter: JobFilter | None = None
    job_ids: tuple[JobId, ...] | None = None
    options: OperationOptions = field(default_factory=OperationOptions)
    key: str | None = None

    def validate(self) -> None:
        """Raise `InvalidRequest` if options and selection do not match the kind."""
        options = self.options
        if (self.filter is None) == (self.job_ids is None):
            _refuse("filter", self.filter, "give either ids or a filter")
        if self.filter is not None and self.filter.statuses is not None and not self.statuses:
            names = ", ".join(sorted(self.kind.statuses))
            _refuse("filter.statuses", sorted(self.filter.statuses), f"a {self.kind} applies to jobs that are {names}")
        if options.budget is not None and self.kind is not OperationKind.REQUEUE:
            _refuse("budget", options.budget, "only a requeue has a budget")
        has_time = options.delay is not None or options.scheduled_for is not None
        if has_time and self.kind not in {OperationKind.REQUEUE, OperationKind.RESCHEDULE}:
            _refuse("delay", options.delay, "only a requeue or a reschedule has a due time")
        if options.priority is not None and self.kind is not OperationKind.RESCHEDULE:
            _refuse("priority", options.priority, "only a reschedule has a priority")
        if self.kind is OperationKind.RESCHEDULE and not has_time and options.priority is None:
            _refuse("delay", None, "a reschedule needs a delay, a time or a priority")
        if options.rate is not None and not MIN_RATE <= options.rate <= MAX_RATE:  # also if it is not a number
            _refuse("rate", options.rate, f"must be from {MIN_RATE:g} to {MAX_RATE:,.0f} jobs per second")
        validate_change(
            budget=options.budget,
            delay=options.delay,
            scheduled_for=options.scheduled_for,
            priority=options.priority,
        )

    @property
    def statuses(self) -> frozenset[Status]:
        """The statuses of the jobs to search: those of the filter that the kind can change."""
        wanted = None if self.filter is None else self.filter.statuses
        if wanted is not None:
            return wanted & self.kind.statuses
        # Canceled jobs are requeued only if the filter says so.
        return frozenset({Status.DEAD}) if self.kind.acts_on_finished_jobs else self.kind.statuses

    @property
    def search(self) -> JobFilter | None:
        """The filter, limited to `statuses`."""
        return None if self.filter is None else replace(self.filter, statuses=self.statuses)

    @property
    def digest(self) -> str:
        """Identifies the content of the request, for repeats with the same idempotency key."""
        parts = [
            self.kind.value,
            self.reason,
            None if self.search is None else filter_to_json(self.search),
            None if self.job_ids is None else [str(each) for each in self.job_ids],
            self.options.to_json(),
        ]
        return sha256(json.dumps(parts).encode()).hexdigest()


def _refuse(field: str, value: object, rule: str) -> None:
    raise InvalidRequest([Problem(field=field, value=str(value), rule=rule)])


def preview(driver: Driver, request: OperationRequest) -> Preview:
    """Count the jobs that the operation would change now, up to `MAX_COUNTED`, and return some of them."""
    request.validate()
    if request.job_ids is not None:
        sample = driver.inspector.summaries(request.job_ids[:MAX_SAMPLE])
        return Preview(matched=len(set(request.job_ids)), is_capped=False, sample=tuple(sample.values()))
    until = driver.inspector.now() - (request.options.older_than or timedelta(0))
    found, after = 0, None
    sample_jobs: list[JobSummary] = []
    for _ in range(MAX_PAGES):
        jobs, after = _page(driver, request.kind, request.search, until=until, limit=STORE_BATCH, after=after)
        found += len(jobs)
        sample_jobs += jobs[: MAX_SAMPLE - len(sample_jobs)]
        if after is None or found >= MAX_COUNTED:
            break
    is_capped = after is not None or found > MAX_COUNTED
    return Preview(matched=min(found, MAX_COUNTED), is_capped=is_capped, sample=tuple(sample_jobs))


def create(
    driver: Driver, request: OperationRequest, found: Preview, *, starts_in: timedelta
) -> tuple[Operation, bool]:
    """Store an operation and its audit entry; return it, and whether it is new: a key that was used before names it.

    Raise `OperationConflict` if another request has used the key.
    """
    request.validate()
    new = NewOperation(
        id=OperationId(new_token()) if request.key is None else operation_id_of(request.key, request.by),
        kind=request.kind,
        by=request.by,
        reason=request.reason,
        filter=request.search,
        job_ids=tuple(dict.fromkeys(request.job_ids or ())),
        options=request.options,
        matched=found.matched,
        is_capped=found.is_capped,
        digest=request.digest,
    )
    [is_new] = driver.operations.add([new], starts_in=starts_in)
    operation = driver.operations.get([new.id])[new.id]
    if operation.digest != request.digest:
        raise OperationConflict(request.key or "", operation.id)
    if is_new:
        detail = {"matched": f"{found.matched}{'+' if found.is_capped else ''}", "why": request.reason}
        _record_audit(driver, operation, new_token(), "operations.create", request.by, **detail)
    return operation, is_new


def stop(driver: Driver, operation_id: OperationId, *, by: str) -> Operation:
    """Stop an operation and return it. One that has ended stays as it is. Raise `OperationNotFound`."""
    [is_stopped] = driver.operations.stop([operation_id], by=by)
    operation = get(driver, operation_id)
    if is_stopped:
        _record_audit(driver, operation, new_token(), "operations.stop", by, done=str(operation.done))
    return operation


def get(driver: Driver, operation_id: OperationId) -> Operation:
    """Return an operation, or raise `OperationNotFound`."""
    found = driver.operations.get([operation_id])
    if operation_id not in found:
        raise OperationNotFound(operation_id)
    return found[operation_id]


def _record_audit(driver: Driver, operation: Operation, entry_id: Token, action: str, by: str, **detail: str) -> None:
    detail = {"kind": operation.kind.value} | {name: value for name, value in detail.items() if value}
    entry = AuditEntry(id=entry_id, actor=by, action=action, target=str(operation.id), detail=detail)
    driver.control.record_audit([entry])


def _page(
    driver: Driver,
    kind: OperationKind,
    wanted: JobFilter | None,
    *,
    until: datetime,
    limit: int,
    after: JobId | None,
) -> tuple[list[JobSummary], JobId | None]:
    """Return a page of matching jobs that came until then, and the cursor of the next page."""
    assert wanted is not None  # noqa: S101  operations on given ids search nothing
    page = driver.inspector.find(wanted, limit=limit, after=after)
    came_at = [job.completed_at if kind.acts_on_finished_jobs else job.created_at for job in page.jobs]
    return [job for job, at in zip(page.jobs, came_at, strict=True) if at is not None and at <= until], page.after


class OperationRunner:
    """Performs the steps of all operations. At a time, one process of a store does so.

    An operation whose step raises an error is logged, and left for `RETRY_SECONDS`: it must not hold up the others.
    ``errors`` has the last error of each such operation.
    """

    def __init__(
        self,
        driver: Driver,
        monotonic: Callable[[], float],
        failures: FailureLog | None = None,
        *,
        call_hooks: HookCaller = NO_HOOKS,
    ) -> None:
        self._driver = driver
        self._monotonic = monotonic
        self._failures = failures or FailureLog(_LOG)
        self._call_hooks = call_hooks
        self._turn_ends_at = 0.0
        self._retry_at: dict[OperationId, float] = {}
        self.errors: dict[OperationId, Exception] = {}

    def tick(self) -> timedelta:
        """Perform one step of each operation that is due, and return the time until the next tick."""
        unfinished = self._driver.operations.unfinished(limit=MAX_UNFINISHED)
        waits = [(each, max(wait, self._left_for(each))) for each, wait in unfinished]
        due = [operation_id for operation_id, wait in waits if wait <= NO_PAUSE]
        if not due:
            return min([IDLE, *(wait for _, wait in waits)])
        if not self._has_turn():
            return TURN_CHECK
        for operation_id in due:
            self._try(operation_id)
        return NO_PAUSE

    def _left_for(self, operation_id: OperationId) -> timedelta:
        """Return for how long an operation is left, because its last step raised an error."""
        return timedelta(seconds=max(0.0, self._retry_at.get(operation_id, 0.0) - self._monotonic()))

    def _try(self, operation_id: OperationId) -> None:
        self._retry_at[operation_id] = self._monotonic() + RETRY_SECONDS
        try:
            for operation in self._driver.operations.get([operation_id]).values():
                self._perform(operation)
        except StoreUnavailable:
            raise  # the others would fail, too, unless this one is too slow; the next tick begins with them
        except Exception as error:  # noqa: BLE001  of its data, or of the driver: it must not hold up the others
            self.errors[operation_id] = error
            self._failures.unexpected(f"operation {operation_id}", error)
        else:
            self._retry_at.pop(operation_id)
            self.errors.pop(operation_id, None)

    def _has_turn(self) -> bool:
        now = self._monotonic()
        if now < self._turn_ends_at:
            return True
        if not self._driver.maintenance.claim_duty("operation-steps", every=TURN):
            return False
        self._turn_ends_at = now + TURN.total_seconds()
        return True

    def _perform(self, operation: Operation) -> None:
        step = self._next_step(operation)
        if operation.kind is OperationKind.PURGE and step.job_ids:
            close_events(
                self._driver, step.job_ids, give_up=f"purged by {operation.by}" if operation.options.gives_up else None
            )
        performed = self._driver.operations.perform(step)
        if performed is not None:
            report_canceled(performed.canceled, self._call_hooks)
            after: Operation | None = performed.operation
        else:  # by another process, or here, and the reply was lost: the audit entry of its end has one id
            found = self._driver.operations.get([operation.id]).get(operation.id)
            after = found if found is not None and found.step == operation.step + 1 else None
        if after is not None and after.state is OperationState.DONE:
            self._report_end(after, step)

    def _next_step(self, operation: Operation) -> OperationStep:
        size, cursor, is_searched = step_size(operation.options.rate), operation.cursor, operation.is_searched
        job_ids: Sequence[JobId] = operation.job_ids[:size] if is_searched else ()
        for _ in range(0 if is_searched else MAX_PAGES):
            jobs, cursor = _page(
                self._driver, operation.kind, operation.filter, until=operation.until, limit=size, after=cursor
            )
            job_ids, is_searched = [job.id for job in jobs], cursor is None
            if job_ids or is_searched:
                break
        rate = operation.options.rate
        return OperationStep(
            operation=operation,
            job_ids=tuple(job_ids),
            cursor=cursor,
            is_searched=is_searched,
            pause=NO_PAUSE if rate is None else timedelta(seconds=len(job_ids) / rate),
            catch_up=CATCH_UP,
        )

    def _report_end(self, operation: Operation, step: OperationStep) -> None:
        refused = ", ".join(f"{count} {reason}" for reason, count in sort_refusals(operation.refused).items())
        _LOG.info("operation %s: %s ended; changed %d jobs", operation.id, operation.kind, operation.done)
        detail = {"done": str(operation.done), "refused": refused}
        _record_audit(self._driver, operation, step.token, "operations.end", operation.by, **detail)


def step_size(rate: float | None) -> int:
    """Return how many jobs one step changes at most.

    >>> step_size(None), step_size(0.5), step_size(100), step_size(10_000)
    (500, 1, 25, 500)
    """
    return STORE_BATCH if rate is None else max(1, min(STORE_BATCH, int(rate * STEP_SPAN.total_seconds())))
