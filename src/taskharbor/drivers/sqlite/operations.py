"""Stored bulk operations. A step is one IMMEDIATE transaction, so no row changes while it is performed."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, LiteralString

from taskharbor.core.operations import OperationKind, OperationRefusal, PerformedStep, StepResult, after_step
from taskharbor.core.results import Transitioned
from taskharbor.core.states import Status
from taskharbor.drivers import records
from taskharbor.drivers.records import OPERATION_COLUMNS, operation_params, requeue_of_step
from taskharbor.drivers.sqlite import control
from taskharbor.drivers.sqlite.rows import CODECS, job_id, maybe_micros, maybe_moment, micros, moment, span

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.operations import NewOperation, Operation, OperationId, OperationStep
    from taskharbor.drivers.sqlite.maintenance import SqliteMaintenance
    from taskharbor.drivers.sqlite.notify import SqliteNotifier
    from taskharbor.drivers.sqlite.pool import SqlitePool

_ID_BYTES: Final = 16


def _job_ids(value: bytes) -> tuple[JobId, ...]:
    return tuple(job_id(value[start : start + _ID_BYTES]) for start in range(0, len(value), _ID_BYTES))


_OPERATION: Final[LiteralString] = ", ".join(OPERATION_COLUMNS)
_SUMMARY: Final[LiteralString] = _OPERATION.replace("job_ids", "x'' AS job_ids")
_operation: Final = records.operation_mapper({**CODECS, "id": job_id, "cursor": job_id, "job_ids": _job_ids})


class SqliteOperations:
    def __init__(self, connections: SqlitePool, maintenance: SqliteMaintenance, notifier: SqliteNotifier) -> None:
        self._connections = connections
        self._maintenance = maintenance
        self._notifier = notifier

    _ADD: LiteralString = """
        INSERT INTO th_operations
               (id, kind, actor, reason, filter, options, matched, is_capped, digest, created_at, next_at,
                is_searched, job_ids)
        VALUES (:id, :kind, :actor, :reason, :filter, :options, :matched, :is_capped, :digest, :now, :next_at,
                :filter IS NULL, :job_ids)
            ON CONFLICT (id) DO NOTHING
    """

    def add(self, operations: Sequence[NewOperation], *, starts_in: timedelta) -> list[bool]:
        with self._connections as (db, now):
            times = {"now": now, "next_at": now + span(starts_in)}
            return [db.execute(self._ADD, _columns(each) | times).rowcount == 1 for each in operations]

    _GET: LiteralString = f"""
        SELECT {_OPERATION}
          FROM th_operations
         WHERE id = ?
    """

    def get(self, ids: Sequence[OperationId]) -> dict[OperationId, Operation]:
        with self._connections.read() as db:
            rows = [row for each in ids for row in db.execute(self._GET, (each.bytes,))]
        return {each.id: each for each in map(_operation, rows)}

    _RECENT: LiteralString = f"""
        SELECT {_SUMMARY}
          FROM th_operations
         WHERE :before IS NULL
            OR (created_at, id) < ((SELECT created_at FROM th_operations WHERE id = :before), :before)
         ORDER BY created_at DESC, id DESC
         LIMIT :limit
    """

    def recent(self, *, limit: int, before: OperationId | None = None) -> list[Operation]:
        params = {"limit": limit, "before": None if before is None else before.bytes}
        with self._connections.read() as db:
            return [_operation(row) for row in db.execute(self._RECENT, params)]

    _UNFINISHED: LiteralString = """
        SELECT id, next_at
          FROM th_operations
         WHERE ended_at IS NULL
         ORDER BY next_at, id
         LIMIT ?
    """

    def unfinished(self, *, limit: int) -> list[tuple[OperationId, timedelta]]:
        with self._connections.read() as db:
            now = self._connections.now()
            rows = db.execute(self._UNFINISHED, (limit,)).fetchall()
        return [(_operation_id(each), timedelta(microseconds=next_at - now)) for each, next_at in rows]

    _IS_NEXT: LiteralString = """
        SELECT 1
          FROM th_operations
         WHERE id = :id
           AND step = :step
           AND ended_at IS NULL
           AND next_at <= :now
    """
    _SAVE: LiteralString = """
        UPDATE th_operations
           SET state = :state,
               next_at = :next_at,
               started_at = :started_at,
               ended_at = :ended_at,
               cursor = :cursor,
               is_searched = :is_searched,
               job_ids = :job_ids,
               step = :step,
               done = :done,
               refused = :refused
         WHERE id = :id
    """

    def perform(self, step: OperationStep) -> PerformedStep | None:
        canceled: list[tuple[control.Answer, str | None]] = []
        with self._connections as (db, now):
            params = {"id": step.operation.id.bytes, "step": step.operation.step, "now": now}
            if db.execute(self._IS_NEXT, params).fetchone() is None:
                return None
            result = StepResult()
            for each in step.job_ids:
                refusal = _refusal(db, step.operation, each) or self._change(db, step, each, now, canceled)
                if refusal is None:
                    result.done += 1
                else:
                    result.refused[refusal] += 1
            after = after_step(step, result, now=moment(now))
            db.execute(self._SAVE, _progress(after))
        self._notifier.notify_cancels({worker for _, worker in canceled if worker is not None})
        if result.done and step.operation.kind in {OperationKind.REQUEUE, OperationKind.RESCHEDULE}:
            self._notifier.notify_any()
        answers = (answer for answer, _ in canceled if isinstance(answer, Transitioned))
        return PerformedStep(after, tuple(each.cancellation for each in answers if each.cancellation is not None))

    def _change(
        self,
        db: sqlite3.Connection,
        step: OperationStep,
        job_id: JobId,
        now: int,
        canceled: list[tuple[control.Answer, str | None]],
    ) -> OperationRefusal | None:
        options = step.operation.options
        delayed = None if options.delay is None else now + span(options.delay)
        due = delayed if options.scheduled_for is None else micros(options.scheduled_for)
        match step.operation.kind:
            case OperationKind.REQUEUE:
                control.requeue(db, job_id, requeue_of_step(step), due=now if due is None else due, now=now)
            case OperationKind.CANCEL:
                canceled.append(control.cancel(db, job_id, now))
            case OperationKind.RESCHEDULE:
                control.reschedule(db, job_id, due=due, priority=options.priority)
            case OperationKind.PURGE:
                if not self._maintenance.purge_in(db, job_id, now):
                    return OperationRefusal.UNPUBLISHED
        return None

    _STOP: LiteralString = """
        UPDATE th_operations
           SET state = 'stopped',
               ended_at = :now,
               stopped_by = :by
         WHERE id = :id
           AND ended_at IS NULL
    """

    def stop(self, ids: Sequence[OperationId], *, by: str) -> list[bool]:
        with self._connections as (db, now):
            return [db.execute(self._STOP, {"id": each.bytes, "now": now, "by": by}).rowcount == 1 for each in ids]

    _PRUNE: LiteralString = """
        DELETE FROM th_operations
         WHERE id IN (
               SELECT id
                 FROM th_operations
                WHERE ended_at <= :until
                ORDER BY ended_at, id
                LIMIT :limit
               )
    """

    def prune(self, *, older_than: timedelta, limit: int) -> int:
        with self._connections as (db, now):
            return db.execute(self._PRUNE, {"until": now - span(older_than), "limit": limit}).rowcount


def _refusal(db: sqlite3.Connection, operation: Operation, job_id: JobId) -> OperationRefusal | None:
    row = db.execute("SELECT status, created_at, completed_at FROM th_jobs WHERE id = ?", (job_id.bytes,)).fetchone()
    if row is None:
        return OperationRefusal.NOT_FOUND
    status, created_at, completed_at = row
    if Status(status) not in operation.statuses:
        return OperationRefusal.NOT_ALLOWED
    came_at = operation.came_at(created_at=moment(created_at), completed_at=maybe_moment(completed_at))
    return OperationRefusal.LATER if came_at is None or came_at > operation.until else None


def _operation_id(value: bytes) -> Any:
    return job_id(value)


def _columns(new: NewOperation) -> dict[str, Any]:
    return operation_params(new) | {"id": new.id.bytes, "job_ids": b"".join(each.bytes for each in new.job_ids)}


def _progress(operation: Operation) -> dict[str, Any]:
    return {
        "id": operation.id.bytes,
        "state": operation.state.value,
        "next_at": micros(operation.next_at),
        "started_at": maybe_micros(operation.started_at),
        "ended_at": maybe_micros(operation.ended_at),
        "cursor": None if operation.cursor is None else operation.cursor.bytes,
        "is_searched": operation.is_searched,
        "job_ids": b"".join(each.bytes for each in operation.job_ids),
        "step": operation.step,
        "done": operation.done,
        "refused": json.dumps(dict(operation.refused)),
    }
