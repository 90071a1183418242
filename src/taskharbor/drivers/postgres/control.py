"""Operator actions on jobs, queues, schedules, settings, API keys and the audit log."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, LiteralString

from taskharbor.core.errors import IllegalTransition, JobNotFound
from taskharbor.core.results import Cancellation, Transitioned
from taskharbor.core.states import Event, Status
from taskharbor.drivers.postgres.rows import NOW
from taskharbor.drivers.postgres.schema import DECLARED_VERSION, OPERATORS_VERSION, require_operators
from taskharbor.drivers.postgres.settle import COUNT_ENDED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.postgres.pool import PostgresPool, Row, Step

    Answer = Transitioned | IllegalTransition | JobNotFound
    from taskharbor.core.model import ApiKey, AuditEntry, Schedule
    from taskharbor.drivers.postgres.settings import PostgresSettings
    from taskharbor.drivers.records import RequeueChange

NO_DELAY: Final = timedelta(0)
_CANCEL: Final[LiteralString] = f"""
    WITH canceled AS (
        UPDATE th_jobs AS job
           SET status = CASE job.status WHEN 'PROCESSING' THEN job.status ELSE 'CANCELED' END,
               completed_at = CASE job.status WHEN 'PROCESSING' THEN NULL ELSE {NOW} END,
               dispatch_at = CASE job.status WHEN 'PROCESSING' THEN job.dispatch_at END,
               cancel_requested_at =
                   CASE job.status WHEN 'PROCESSING' THEN coalesce(job.cancel_requested_at, {NOW}) END
         WHERE job.id = ANY (%(ids)s)
           AND job.status IN ('PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING')
        RETURNING job.id, job.type, job.queue, job.status, job.worker_id
    ),
    tallied AS (
        {COUNT_ENDED}
          FROM canceled
         WHERE status = 'CANCELED'
         GROUP BY queue, status
    )
    SELECT id, status, CASE status WHEN 'PROCESSING' THEN worker_id END, type, queue
      FROM canceled
"""


def cancel(connections: PostgresPool, job_ids: Sequence[JobId]) -> tuple[list[Answer], set[str]]:
    """Cancel jobs, and return the answers and the workers that run some of them."""
    statement, parameters = cancel_statement(job_ids)
    rows = connections.fetch(statement, **parameters)
    canceled = {each.job_id: each for each in cancellations(rows)}
    answers = _answers(connections, job_ids, rows, Event.CANCEL)
    return [
        replace(each, cancellation=canceled.get(each.job_id)) if isinstance(each, Transitioned) else each
        for each in answers
    ], workers_to_notify(rows)


def cancel_statement(job_ids: Sequence[JobId]) -> Step:
    """Return the statement that cancels jobs. It returns a row for each job that it changed."""
    return _CANCEL, {"ids": list(job_ids)}


def workers_to_notify(rows: Sequence[Row]) -> set[str]:
    """Return the workers that run some of the jobs that `cancel_statement` changed."""
    return {row[2] for row in rows if row[2] is not None}


def cancellations(rows: Sequence[Row]) -> list[Cancellation]:
    """Return the jobs that `cancel_statement` has canceled; it has only requested the cancel of the others."""
    return [Cancellation(job_id=row[0], type=row[3], queue=row[4]) for row in rows if row[1] == Status.CANCELED]


_REQUEUE: Final[LiteralString] = f"""
    WITH ended AS (
        SELECT job.id, job.life, job.attempt_count, job.queue, job.status
          FROM th_jobs AS job
         WHERE job.id = ANY (%(ids)s)
           AND job.status IN ('DEAD', 'CANCELED')
           AND (%(queue)s::text IS NULL OR job.queue = %(queue)s)
         ORDER BY job.id
           FOR UPDATE
    ),
    -- A job that was requeued under this token before conflicts here, and is not requeued again.
    recorded AS (
        INSERT INTO th_attempts (
            job_id, token, life, attempt, worker_id, ended_at, event, status, outcome,
            error_type, message, traceback, fingerprint
        )
        SELECT id, %(token)s, life, attempt_count, %(by)s, {NOW}, 'requeue', 'PENDING', 'REQUEUED', '', %(why)s, '', ''
          FROM ended
            ON CONFLICT DO NOTHING
        RETURNING job_id
    ),
    revived AS (
        UPDATE th_jobs AS job
           SET status = 'PENDING',
               payload = coalesce(%(payload)s, job.payload),
               life = job.life + 1,
               max_attempts = job.attempt_count + coalesce(%(budget)s, job.max_attempts - coalesce((
                   -- What earlier lives have used: 0 in the first one.
                   SELECT before.attempt
                     FROM th_attempts AS before
                    WHERE before.job_id = job.id
                      AND before.life = job.life - 1
                      AND before.event = 'requeue'
               ), 0)),
               scheduled_for = coalesce(%(scheduled_for)s, {NOW} + %(delay)s),
               cancel_requested_at = NULL,
               dead_at = NULL,
               dead_reason = NULL,
               fingerprint = NULL,
               completed_at = NULL,
               dispatch_at = NULL,
               sent_at = NULL,
               releases = 0,
               resends = 0,
               settled_token = NULL,
               result = NULL,
               progress = NULL
         WHERE job.id = ANY (ARRAY(SELECT job_id FROM recorded))
           AND job.status IN ('DEAD', 'CANCELED')
        RETURNING job.id, job.status
    ),
    tallied AS (
        INSERT INTO th_tallies (minute, queue, status, ended, kept)
        SELECT date_bin('1 minute', {NOW}, 'epoch'), ended.queue, ended.status, 0, -count(*)
          FROM ended
          JOIN recorded ON recorded.job_id = ended.id
         GROUP BY ended.queue, ended.status
    )
    SELECT id, status
      FROM revived
"""
_REQUEUED: Final[LiteralString] = """
    SELECT job.id, 'PENDING'
      FROM th_attempts AS before
      JOIN th_jobs AS job
        ON job.id = ANY (ARRAY[before.job_id])
     WHERE before.job_id = ANY (%(ids)s)
       AND before.token = %(token)s
       AND (%(queue)s::text IS NULL OR job.queue = %(queue)s)
"""


def requeue(
    connections: PostgresPool,
    job_ids: Sequence[JobId],
    new: RequeueChange,
    *,
    scheduled_for: datetime | None,
    delay: timedelta | None,
) -> list[Answer]:
    statement, parameters = requeue_statement(job_ids, new, scheduled_for=scheduled_for, delay=delay)
    rows = connections.fetch(statement, **parameters)
    if len(rows) < len(job_ids):
        rows = connections.fetch(_REQUEUED, ids=list(job_ids), token=new.token, queue=new.queue)
    return _answers(connections, job_ids, rows, Event.REQUEUE, queue=new.queue)


def requeue_statement(
    job_ids: Sequence[JobId], new: RequeueChange, *, scheduled_for: datetime | None, delay: timedelta | None
) -> Step:
    """Return the statement that requeues jobs. It returns a row for each job that it changed."""
    return _REQUEUE, {
        "ids": list(job_ids),
        "token": new.token,
        "budget": new.budget,
        "by": new.by,
        "why": new.reason,
        "scheduled_for": scheduled_for,
        "delay": delay or NO_DELAY,
        "queue": new.queue,
        "payload": new.payload,
    }


_RESCHEDULE: Final[LiteralString] = f"""
    UPDATE th_jobs_waiting AS job
       SET scheduled_for = coalesce(%(scheduled_for)s, {NOW} + %(delay)s::interval, job.scheduled_for),
           priority = coalesce(%(priority)s, job.priority),
           dispatch_at = NULL
     WHERE job.id = ANY (%(ids)s)
    RETURNING job.id, job.status
"""


def reschedule(
    connections: PostgresPool,
    job_ids: Sequence[JobId],
    *,
    scheduled_for: datetime | None,
    delay: timedelta | None,
    priority: int | None,
) -> list[Answer]:
    statement, parameters = reschedule_statement(job_ids, scheduled_for=scheduled_for, delay=delay, priority=priority)
    return _answers(connections, job_ids, connections.fetch(statement, **parameters), Event.RESCHEDULE)


def reschedule_statement(
    job_ids: Sequence[JobId], *, scheduled_for: datetime | None, delay: timedelta | None, priority: int | None
) -> Step:
    """Return the statement that reschedules jobs. It returns a row for each job that it changed."""
    return _RESCHEDULE, {"ids": list(job_ids), "scheduled_for": scheduled_for, "delay": delay, "priority": priority}


_STATUS: Final[LiteralString] = """
    SELECT job.id, job.status
      FROM th_jobs AS job
     WHERE job.id = ANY (%(ids)s)
       AND (%(queue)s::text IS NULL OR job.queue = %(queue)s)
"""


def _answers(
    connections: PostgresPool, job_ids: Sequence[JobId], rows: Sequence[Row], event: Event, *, queue: str | None = None
) -> list[Answer]:
    moved = {row[0]: Status(row[1]) for row in rows}
    refused = [each for each in job_ids if each not in moved]
    found = {row[0]: row[1] for row in connections.fetch(_STATUS, ids=refused, queue=queue)} if refused else {}
    return [
        Transitioned(each, moved[each])
        if each in moved
        else IllegalTransition(each, Status(found[each]), event)
        if each in found
        else JobNotFound(each)
        for each in job_ids
    ]


class PostgresControl:
    def __init__(self, connections: PostgresPool, settings: PostgresSettings) -> None:
        self._connections = connections
        self._settings = settings

    _PAUSE: LiteralString = f"""
        INSERT INTO th_queues (name, paused_at, paused_by)
        SELECT name, {NOW}, %(by)s
          FROM unnest(%(names)s::text[]) AS asked (name)
         ORDER BY name
            ON CONFLICT (name) DO NOTHING
        RETURNING name
    """

    # On any schema version; a pause with a reason or an end needs the newest one.
    _PAUSE_WITH_END: LiteralString = _PAUSE.replace(
        "(name, paused_at, paused_by)", "(name, paused_at, paused_by, paused_reason, paused_until)"
    ).replace("%(by)s", f"%(by)s, %(reason)s, {NOW} + %(lasts)s::interval")

    def pause(self, queues: Sequence[str], *, by: str, reason: str = "", lasts: timedelta | None = None) -> list[bool]:
        if not reason and lasts is None:
            return self._each(self._PAUSE, queues, by=by)
        require_operators(self._connections)
        return self._each(self._PAUSE_WITH_END, queues, by=by, reason=reason, lasts=lasts)

    _RESUME: LiteralString = """
        DELETE FROM th_queues
         WHERE name = ANY (%(names)s)
        RETURNING name
    """

    def resume(self, queues: Sequence[str]) -> list[bool]:
        return self._each(self._RESUME, queues)

    _PUT_SCHEDULES: LiteralString = """
        INSERT INTO th_schedules AS known
               (name, cron, timezone, type, queue, payload, options, next_at, fired_at, paused_at,
                last_job_id, declared_at)
        SELECT *
          FROM unnest(
               %(names)s::text[], %(crons)s::text[], %(timezones)s::text[], %(types)s::text[], %(queues)s::text[],
               %(payloads)s::bytea[], %(options)s::jsonb[], %(next)s::timestamptz[], %(fired)s::timestamptz[],
               %(paused)s::timestamptz[], %(last)s::uuid[], %(declared)s::timestamptz[]
               ) AS asked (name)
         ORDER BY name
            ON CONFLICT (name) DO UPDATE
           SET cron = excluded.cron,
               timezone = excluded.timezone,
               type = excluded.type,
               queue = excluded.queue,
               payload = excluded.payload,
               options = excluded.options,
               next_at = CASE
                   WHEN known.cron = excluded.cron AND known.timezone = excluded.timezone THEN known.next_at
                   ELSE excluded.next_at
               END,
               declared_at = excluded.declared_at
    """
    _PUT_SCHEDULES_2: LiteralString = (  # on schema version 2
        _PUT_SCHEDULES.replace(", declared_at)", ")")
        .replace(", %(declared)s::timestamptz[]", "")
        .replace(",\n               declared_at = excluded.declared_at", "")
    )

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        columns: dict[str, list[Any]] = {
            "names": [each.name for each in schedules],
            "crons": [each.cron for each in schedules],
            "timezones": [each.timezone for each in schedules],
            "types": [each.type for each in schedules],
            "queues": [each.queue for each in schedules],
            "payloads": [each.payload for each in schedules],
            "options": [json.dumps(dict(each.options)) for each in schedules],
            "next": [each.next_at for each in schedules],
            "fired": [each.fired_at for each in schedules],
            "paused": [each.paused_at for each in schedules],
            "last": [each.last_job_id for each in schedules],
            "declared": [each.declared_at for each in schedules],
        }
        has_declared = self._connections.schema_version >= DECLARED_VERSION
        self._connections.fetch(self._PUT_SCHEDULES if has_declared else self._PUT_SCHEDULES_2, **columns)

    _DELETE_SCHEDULES: LiteralString = """
        DELETE FROM th_schedules
         WHERE name = ANY (%(names)s)
        RETURNING name
    """

    def delete_schedules(self, names: Sequence[str]) -> list[bool]:
        return self._each(self._DELETE_SCHEDULES, names)

    _PAUSE_SCHEDULES: LiteralString = f"""
        UPDATE th_schedules
           SET paused_at = {NOW}
         WHERE name = ANY (%(names)s)
           AND paused_at IS NULL
        RETURNING name
    """

    def pause_schedules(self, names: Sequence[str]) -> list[bool]:
        return self._each(self._PAUSE_SCHEDULES, names)

    _RESUME_SCHEDULES: LiteralString = """
        UPDATE th_schedules
           SET paused_at = NULL
         WHERE name = ANY (%(names)s)
           AND paused_at IS NOT NULL
        RETURNING name
    """

    def resume_schedules(self, names: Sequence[str]) -> list[bool]:
        return self._each(self._RESUME_SCHEDULES, names)

    def change_setting(self, name: str, value: str, *, instead_of: str) -> bool:
        return self._settings.change(name, value, instead_of=instead_of)

    # The scopes of a key are sent as JSON: PostgreSQL has no arrays of arrays with different lengths.
    _ADD_KEYS: LiteralString = """
        INSERT INTO th_api_keys (id, name, digest, scopes, created_at, expires_at, revoked_at, parent)
        SELECT id, name, digest, ARRAY(SELECT jsonb_array_elements_text(scopes)), created_at, expires_at, revoked_at,
               parent
          FROM unnest(
               %(names)s::text[], %(titles)s::text[], %(digests)s::bytea[], %(scopes)s::jsonb[],
               %(created)s::timestamptz[], %(expire)s::timestamptz[], %(revoked)s::timestamptz[], %(parents)s::text[]
               ) AS asked (id, name, digest, scopes, created_at, expires_at, revoked_at, parent)
         ORDER BY id
            ON CONFLICT (id) DO NOTHING
        RETURNING id
    """

    _ADD_KEYS_3: LiteralString = (
        _ADD_KEYS.replace(", parent)", ")").replace(",\n               parent", "").replace(", %(parents)s::text[]", "")
    )

    # Rows that another login removes, or a revocation changes, are left to it: waiting for them could deadlock.
    _REMOVE_SESSIONS: LiteralString = f"""
        DELETE FROM th_api_keys
         WHERE id = ANY (ARRAY(
               SELECT id
                 FROM th_api_keys
                WHERE parent IS NOT NULL
                  AND expires_at <= {NOW}
                ORDER BY id
                  FOR UPDATE SKIP LOCKED
               ))
        RETURNING id
    """

    def add_keys(self, keys: Sequence[ApiKey]) -> list[bool]:
        if any(key.parent is not None for key in keys):
            require_operators(self._connections)
            self._connections.fetch(self._REMOVE_SESSIONS)
        return self._each(
            self._ADD_KEYS if self._has_operators else self._ADD_KEYS_3,
            [each.id for each in keys],
            titles=[each.name for each in keys],
            digests=[each.digest for each in keys],
            scopes=[json.dumps(each.scopes) for each in keys],
            created=[each.created_at for each in keys],
            expire=[each.expires_at for each in keys],
            revoked=[each.revoked_at for each in keys],
            parents=[each.parent for each in keys],
        )

    _REVOKE_KEYS: LiteralString = f"""
        UPDATE th_api_keys
           SET revoked_at = {NOW}
         WHERE (id = ANY (%(names)s) OR parent = ANY (%(names)s))
           AND revoked_at IS NULL
        RETURNING id
    """
    _REVOKE_KEYS_3: LiteralString = _REVOKE_KEYS.replace(" OR parent = ANY (%(names)s)", "")

    def revoke_keys(self, ids: Sequence[str]) -> list[bool]:
        return self._each(self._REVOKE_KEYS if self._has_operators else self._REVOKE_KEYS_3, ids)

    _NOTE_KEY_USE: LiteralString = f"""
        UPDATE th_api_keys
           SET used_at = {NOW}
         WHERE id = ANY (%(ids)s)
    """

    def note_key_use(self, ids: Sequence[str]) -> None:
        self._connections.fetch(self._NOTE_KEY_USE, ids=sorted(ids))

    _RECORD_AUDIT: LiteralString = f"""
        INSERT INTO th_audit (id, at, actor, action, target, detail)
        SELECT id, {NOW}, actor, action, target, detail
          FROM unnest(
               %(ids)s::uuid[], %(actors)s::text[], %(actions)s::text[], %(targets)s::text[], %(details)s::jsonb[]
               ) AS asked (id, actor, action, target, detail)
         ORDER BY id
            ON CONFLICT (id) DO NOTHING
    """

    def record_audit(self, entries: Sequence[AuditEntry]) -> None:
        self._connections.fetch(
            self._RECORD_AUDIT,
            ids=[each.id for each in entries],
            actors=[each.actor for each in entries],
            actions=[each.action for each in entries],
            targets=[each.target for each in entries],
            details=[json.dumps(dict(each.detail)) for each in entries],
        )

    @property
    def _has_operators(self) -> bool:
        return self._connections.schema_version >= OPERATORS_VERSION

    def _each(self, statement: LiteralString, names: Sequence[str], **parameters: Any) -> list[bool]:
        """Run *statement* for all *names*, and return for each whether it changed a row."""
        changed = {name for (name,) in self._connections.fetch(statement, names=list(names), **parameters)}
        return [name in changed for name in names]
