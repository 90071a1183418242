"""Stored bulk operations. A step is one transaction, which locks the operation and then the jobs of the step."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, LiteralString

from taskharbor.core.errors import SchemaOutOfDate
from taskharbor.core.operations import OperationKind, OperationRefusal, PerformedStep, StepResult, after_step
from taskharbor.core.states import Status
from taskharbor.drivers import records
from taskharbor.drivers.migrate import RUN_MIGRATIONS
from taskharbor.drivers.notices import ANY_QUEUE, cancel_topic
from taskharbor.drivers.postgres import control
from taskharbor.drivers.postgres.retention import REMOVE_DEAD_BY_ID
from taskharbor.drivers.postgres.rows import NOW
from taskharbor.drivers.postgres.schema import MIGRATIONS, OPERATORS_VERSION
from taskharbor.drivers.postgres.server import ReplyLost
from taskharbor.drivers.records import OPERATION_COLUMNS, operation_params, requeue_of_step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.operations import NewOperation, Operation, OperationId, OperationStep
    from taskharbor.core.results import Cancellation
    from taskharbor.drivers.postgres.notify import PostgresNotifier
    from taskharbor.drivers.postgres.pool import PostgresPool, Steps

_AS_TEXT: Final = frozenset({"filter", "options", "refused"})
_OPERATION: Final[LiteralString] = ", ".join(
    f"{name}::text" if name in _AS_TEXT else name for name in OPERATION_COLUMNS
)
_SUMMARY: Final[LiteralString] = _OPERATION.replace("job_ids", "ARRAY[]::uuid[]")
_operation: Final = records.operation_mapper({"job_ids": tuple})

_LOCK_JOBS: Final[LiteralString] = """
    SELECT job.id, job.status, job.created_at, job.completed_at
      FROM th_jobs AS job
     WHERE job.id = ANY (%(ids)s)
       AND job.status IN ({statuses})
       FOR UPDATE SKIP LOCKED
"""
# Constants for the statuses: with parameters, the planner would not exclude partitions.
_LOCK_BY_KIND: Final[dict[OperationKind, LiteralString]] = {
    OperationKind.REQUEUE: _LOCK_JOBS.format(statuses="'DEAD', 'CANCELED'"),
    OperationKind.CANCEL: _LOCK_JOBS.format(statuses="'PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING'"),
    OperationKind.RESCHEDULE: _LOCK_JOBS.format(statuses="'PENDING', 'ENQUEUED', 'FAILED'"),
    OperationKind.PURGE: _LOCK_JOBS.format(statuses="'DEAD'"),
}
_STATUSES: Final[LiteralString] = """
    SELECT job.id, job.status
      FROM th_jobs AS job
     WHERE job.id = ANY (%(ids)s)
"""


class PostgresOperations:
    def __init__(self, connections: PostgresPool, notifier: PostgresNotifier) -> None:
        self._connections = connections
        self._notifier = notifier

    _ADD: LiteralString = f"""
        INSERT INTO th_operations
               (id, kind, actor, reason, filter, options, matched, is_capped, digest, created_at, next_at,
                is_searched, job_ids)
        VALUES (%(id)s, %(kind)s, %(actor)s, %(reason)s, %(filter)s, %(options)s, %(matched)s, %(is_capped)s,
                %(digest)s, {NOW}, {NOW} + %(starts_in)s, %(filter)s::jsonb IS NULL, %(job_ids)s)
            ON CONFLICT (id) DO NOTHING
        RETURNING id
    """

    def add(self, operations: Sequence[NewOperation], *, starts_in: timedelta) -> list[bool]:
        self._check_schema()

        def insert() -> Steps[list[bool]]:
            added = []
            for new in operations:
                params = operation_params(new) | {"id": new.id, "job_ids": list(new.job_ids), "starts_in": starts_in}
                added.append(bool((yield self._ADD, params)))
            return added

        return self._connections.transact(insert)

    _GET: LiteralString = f"""
        SELECT {_OPERATION}
          FROM th_operations
         WHERE id = ANY (%(ids)s)
    """

    def get(self, ids: Sequence[OperationId]) -> dict[OperationId, Operation]:
        rows = self._connections.fetch(self._GET, ids=list(ids)) if self._has_table else []
        found = {each.id: each for each in map(_operation, rows)}
        return {each: found[each] for each in ids if each in found}

    _RECENT: LiteralString = f"""
        SELECT {_SUMMARY}
          FROM th_operations
         WHERE {{place}}
         ORDER BY created_at DESC, id DESC
         LIMIT %(limit)s
    """
    _NEWEST: LiteralString = _RECENT.format(place="true")
    _BELOW: LiteralString = _RECENT.format(
        place="(created_at, id) < ((SELECT created_at FROM th_operations WHERE id = %(before)s), %(before)s::uuid)"
    )

    def recent(self, *, limit: int, before: OperationId | None = None) -> list[Operation]:
        if not self._has_table:
            return []
        statement = self._NEWEST if before is None else self._BELOW
        return [_operation(row) for row in self._connections.fetch(statement, limit=limit, before=before)]

    _UNFINISHED: LiteralString = f"""
        SELECT id, next_at - {NOW}
          FROM th_operations
         WHERE ended_at IS NULL
         ORDER BY next_at, id
         LIMIT %(limit)s
    """

    def unfinished(self, *, limit: int) -> list[tuple[OperationId, timedelta]]:
        rows = self._connections.fetch(self._UNFINISHED, limit=limit) if self._has_table else []
        return [(each, wait) for each, wait in rows]

    _IS_NEXT: LiteralString = f"""
        SELECT {NOW}
          FROM th_operations
         WHERE id = %(id)s
           AND step = %(step)s
           AND ended_at IS NULL
           AND next_at <= {NOW}
           FOR UPDATE SKIP LOCKED
    """
    _SAVE: LiteralString = """
        UPDATE th_operations
           SET state = %(state)s,
               next_at = %(next_at)s,
               started_at = %(started_at)s,
               ended_at = %(ended_at)s,
               cursor = %(cursor)s,
               is_searched = %(is_searched)s,
               job_ids = %(job_ids)s,
               step = %(step)s,
               done = %(done)s,
               refused = %(refused)s
         WHERE id = %(id)s
    """

    def perform(self, step: OperationStep) -> PerformedStep | None:
        self._check_schema()
        workers: set[str] = set()

        def work() -> Steps[PerformedStep | None]:
            rows = yield self._IS_NEXT, {"id": step.operation.id, "step": step.operation.step}
            if not rows:
                return None
            result = yield from _perform(step, workers)
            after = after_step(step, result, now=rows[0][0])
            yield self._SAVE, _progress(after)
            return PerformedStep(after, tuple(result.canceled))

        try:
            performed = self._connections.transact(work)
        except ReplyLost as lost:
            self._connections.resolve(lost)
            # None if it was committed: the caller reads the operation again
            performed = self._connections.transact(work)
        if performed is not None and step.operation.kind in {OperationKind.REQUEUE, OperationKind.RESCHEDULE}:
            self._notifier.notify([ANY_QUEUE])
        self._notifier.notify({cancel_topic(worker) for worker in workers})
        return performed

    _STOP: LiteralString = f"""
        UPDATE th_operations
           SET state = 'stopped',
               ended_at = {NOW},
               stopped_by = %(by)s
         WHERE id = ANY (%(ids)s)
           AND ended_at IS NULL
        RETURNING id
    """

    def stop(self, ids: Sequence[OperationId], *, by: str) -> list[bool]:
        self._check_schema()
        stopped = {each for (each,) in self._connections.fetch(self._STOP, ids=list(ids), by=by)}
        return [each in stopped for each in ids]

    _PRUNE: LiteralString = f"""
        DELETE FROM th_operations
         WHERE id = ANY (ARRAY(
               SELECT id
                 FROM th_operations
                WHERE ended_at <= {NOW} - %(older_than)s
                ORDER BY ended_at, id
                LIMIT %(limit)s
               ))
        RETURNING id
    """

    def prune(self, *, older_than: timedelta, limit: int) -> int:
        if not self._has_table:
            return 0
        return len(self._connections.fetch(self._PRUNE, older_than=older_than, limit=limit))

    @property
    def _has_table(self) -> bool:
        return self._connections.schema_version >= OPERATORS_VERSION

    def _check_schema(self) -> None:
        if not self._has_table:
            found, wanted = str(self._connections.schema_version), str(len(MIGRATIONS))
            raise SchemaOutOfDate(found, wanted, RUN_MIGRATIONS)


def _perform(step: OperationStep, workers: set[str]) -> Steps[StepResult]:
    """Change the jobs of *step*, and add the workers that run canceled ones to *workers*."""
    operation, result = step.operation, StepResult()
    if not step.job_ids:
        return result
    rows = yield _LOCK_BY_KIND[operation.kind], {"ids": list(step.job_ids)}
    came_at = {
        each: operation.came_at(created_at=created, completed_at=completed)
        for each, status, created, completed in rows
        if Status(status) in operation.statuses  # of its filter
    }
    missing = [each for each in step.job_ids if each not in came_at]
    yield from _explain(operation, missing, result)
    eligible = [each for each, at in came_at.items() if at is not None and at <= operation.until]
    result.refused[OperationRefusal.LATER] += len(came_at) - len(eligible)
    result.done = yield from _change(step, eligible, workers, result.canceled)
    result.refused[OperationRefusal.UNPUBLISHED] += len(eligible) - result.done
    return result


def _explain(operation: Operation, missing: list[JobId], result: StepResult) -> Steps[None]:
    """Find out why jobs were not locked here: they do not exist, have another status, or others have locked them."""
    found = {each: Status(status) for each, status in (yield _STATUSES, {"ids": missing})} if missing else {}
    for each in missing:
        if each not in found:
            result.refused[OperationRefusal.NOT_FOUND] += 1
        elif found[each] in operation.statuses:
            result.locked.append(each)
        else:
            result.refused[OperationRefusal.NOT_ALLOWED] += 1


def _change(step: OperationStep, job_ids: list[JobId], workers: set[str], canceled: list[Cancellation]) -> Steps[int]:
    """Change jobs that are locked here, and return their number. A purge keeps those with an unpublished event."""
    options = step.operation.options
    times: dict[str, Any] = {"scheduled_for": options.scheduled_for, "delay": options.delay}
    if not job_ids:
        return 0
    match step.operation.kind:
        case OperationKind.REQUEUE:
            return len((yield control.requeue_statement(job_ids, requeue_of_step(step), **times)))
        case OperationKind.CANCEL:
            rows = yield control.cancel_statement(job_ids)
            workers |= control.workers_to_notify(rows)
            canceled += control.cancellations(rows)
            return len(rows)
        case OperationKind.RESCHEDULE:
            return len((yield control.reschedule_statement(job_ids, **times, priority=options.priority)))
        case OperationKind.PURGE:
            chosen = {"older_than": control.NO_DELAY, "limit": len(job_ids), "ids": job_ids}
            [(count,)] = yield REMOVE_DEAD_BY_ID, chosen
            return count  # type: ignore[no-any-return]


def _progress(operation: Operation) -> dict[str, Any]:
    return {
        "id": operation.id,
        "state": operation.state.value,
        "next_at": operation.next_at,
        "started_at": operation.started_at,
        "ended_at": operation.ended_at,
        "cursor": operation.cursor,
        "is_searched": operation.is_searched,
        "job_ids": list(operation.job_ids),
        "step": operation.step,
        "done": operation.done,
        "refused": json.dumps(dict(operation.refused)),
    }
