"""Stored bulk operations of the memory store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taskharbor.core.operations import (
    Operation,
    OperationKind,
    OperationRefusal,
    OperationState,
    PerformedStep,
    StepResult,
    after_step,
    is_due,
)
from taskharbor.core.results import Transitioned
from taskharbor.drivers.memory import jobs
from taskharbor.drivers.records import requeue_of_step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.core.operations import NewOperation, OperationId, OperationStep
    from taskharbor.drivers.memory.tables import Tables


class MemoryOperations:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add(self, operations: Sequence[NewOperation], *, starts_in: timedelta) -> list[bool]:
        with self._tables.statement() as now:
            return [self._add(each, now, now + starts_in) for each in operations]

    def _add(self, new: NewOperation, now: datetime, starts_at: datetime) -> bool:
        if new.id in self._tables.rows.operations:
            return False
        self._tables.rows.operations[new.id] = Operation(
            id=new.id,
            kind=new.kind,
            by=new.by,
            reason=new.reason,
            filter=new.filter,
            options=new.options,
            matched=new.matched,
            is_capped=new.is_capped,
            digest=new.digest,
            state=OperationState.WAITING,
            created_at=now,
            next_at=starts_at,
            is_searched=new.filter is None,
            job_ids=new.job_ids,
        )
        return True

    def get(self, ids: Sequence[OperationId]) -> dict[OperationId, Operation]:
        with self._tables.statement():
            known = self._tables.rows.operations
            return {each: known[each] for each in ids if each in known}

    def recent(self, *, limit: int, before: OperationId | None = None) -> list[Operation]:
        with self._tables.statement():
            known = self._tables.rows.operations
            found = sorted(known.values(), key=_place, reverse=True)
            if before is not None:
                found = [each for each in found if before in known and _place(each) < _place(known[before])]
            return [replace(each, job_ids=()) for each in found[:limit]]

    def unfinished(self, *, limit: int) -> list[tuple[OperationId, timedelta]]:
        with self._tables.statement() as now:
            found = [each for each in self._tables.rows.operations.values() if each.state.is_open]
            found.sort(key=lambda each: (each.next_at, each.id))
            return [(each.id, each.next_at - now) for each in found[:limit]]

    def perform(self, step: OperationStep) -> PerformedStep | None:
        with self._tables.statement() as now:
            stored = self._tables.rows.operations.get(step.operation.id)
            if stored is None or not is_due(stored, step, now=now):
                return None
            result, unpublished = StepResult(), self._unpublished()
            for job_id in step.job_ids:
                refusal = self._refusal(step.operation, job_id, unpublished)
                if refusal is None:
                    self._change(step, self._tables.rows.jobs[job_id], now, result)
                    result.done += 1
                else:
                    result.refused[refusal] += 1
            after = after_step(step, result, now=now)
            self._tables.rows.operations[after.id] = after
            return PerformedStep(after, tuple(result.canceled))

    def _unpublished(self) -> set[JobId]:
        return {row.event.job_id for row in self._tables.rows.outbox.values() if not row.is_done}

    def _refusal(self, operation: Operation, job_id: JobId, unpublished: set[JobId]) -> OperationRefusal | None:
        job = self._tables.rows.jobs.get(job_id)
        if job is None:
            return OperationRefusal.NOT_FOUND
        if job.status not in operation.statuses:
            return OperationRefusal.NOT_ALLOWED
        came_at = operation.came_at(created_at=job.created_at, completed_at=job.completed_at)
        if came_at is None or came_at > operation.until:
            return OperationRefusal.LATER
        if operation.kind is OperationKind.PURGE and job_id in unpublished:
            return OperationRefusal.UNPUBLISHED
        return None

    def _change(self, step: OperationStep, job: Job, now: datetime, result: StepResult) -> None:
        options = step.operation.options
        due = options.scheduled_for or (None if options.delay is None else now + options.delay)
        match step.operation.kind:
            case OperationKind.REQUEUE:
                jobs.requeue(self._tables, job.id, requeue_of_step(step), due=due or now, now=now)
            case OperationKind.CANCEL:
                answer = jobs.cancel(self._tables, job.id, now)
                if isinstance(answer, Transitioned) and answer.cancellation is not None:
                    result.canceled.append(answer.cancellation)
            case OperationKind.RESCHEDULE:
                jobs.reschedule(self._tables, job.id, now, due=due, priority=options.priority)
            case OperationKind.PURGE:
                self._tables.remove(job)

    def stop(self, ids: Sequence[OperationId], *, by: str) -> list[bool]:
        with self._tables.statement() as now:
            return [self._stop(each, by, now) for each in ids]

    def _stop(self, operation_id: OperationId, by: str, now: datetime) -> bool:
        found = self._tables.rows.operations.get(operation_id)
        if found is None or not found.state.is_open:
            return False
        stopped = replace(found, state=OperationState.STOPPED, ended_at=now, stopped_by=by)
        self._tables.rows.operations[operation_id] = stopped
        return True

    def prune(self, *, older_than: timedelta, limit: int) -> int:
        with self._tables.statement() as now:
            known = self._tables.rows.operations
            old = [each for each in known.values() if each.ended_at is not None and each.ended_at <= now - older_than]
            old.sort(key=lambda each: (each.ended_at, each.id))
            for each in old[:limit]:
                del known[each.id]
            return len(old[:limit])


def _place(operation: Operation) -> tuple[datetime, OperationId]:
    return operation.created_at, operation.id
