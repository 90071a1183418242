"""Maintenance duties: leases, retention, worker records, the outbox, schedules and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString
from uuid import UUID

from taskharbor.core.model import PUBLISHER_NOTED
from taskharbor.core.results import Published
from taskharbor.core.schedule_runs import KEPT_RUNS
from taskharbor.drivers.postgres import delivery_notes, roll_up, schedule_runs, statistics, worker_records
from taskharbor.drivers.postgres.expire import PostgresLeaseExpiry
from taskharbor.drivers.postgres.insert import insert
from taskharbor.drivers.postgres.notify import ready_queues
from taskharbor.drivers.postgres.retention import Retention
from taskharbor.drivers.postgres.rows import LIMIT_TO_IDS, NOW, OUTBOX, SCHEDULE, SCHEDULE_2, outbox_row, schedule
from taskharbor.drivers.postgres.schema import DECLARED_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.messages import DeliveryNote
    from taskharbor.core.model import NewJob, OutboxRow, Schedule, WorkerRecord
    from taskharbor.core.results import Death, Expired, Refusal, Unpublished
    from taskharbor.core.schedule_runs import ScheduleRun
    from taskharbor.core.statistics import StatisticTally
    from taskharbor.drivers.postgres.notify import PostgresNotifier
    from taskharbor.drivers.postgres.pool import PostgresPool, Steps

_IS_DECLARED: LiteralString = f"""EXISTS (
               SELECT
                 FROM th_workers AS worker
                WHERE worker.seen_at > {NOW} - %(alive_within)s
                  AND th_schedules.name = ANY (worker.schedules)
               )"""
"""Whether a live worker declares a schedule."""
_MAY_FIRE: LiteralString = f"(declared_at IS NULL OR {_IS_DECLARED})"


class PostgresMaintenance:
    def __init__(self, connections: PostgresPool, notifier: PostgresNotifier) -> None:
        self._connections = connections
        self._notifier = notifier
        self._lease_expiry = PostgresLeaseExpiry(connections)
        self._retention = Retention(connections)

    def expire(self, *, limit: int) -> list[Expired]:
        return self._lease_expiry.expire(limit=limit)

    def bury(self, *, limit: int) -> list[Death]:
        return self._lease_expiry.bury(limit=limit)

    def report_clock_jump(self, *, expected: datetime, lease: timedelta) -> None:
        self._lease_expiry.report_clock_jump(expected=expected, lease=lease)

    def prune(self, *, older_than: timedelta, limit: int, within: timedelta | None = None) -> int:
        return self._retention.prune(older_than=older_than, limit=limit, within=within)

    def purge(self, *, older_than: timedelta, limit: int, job_ids: Sequence[JobId] | None = None) -> int:
        return self._retention.purge(older_than=older_than, limit=limit, job_ids=job_ids)

    _CLAIM_DUTY: LiteralString = f"""
        INSERT INTO th_duties AS duty (name, next_at)
        VALUES (%(name)s, {NOW} + %(every)s)
            ON CONFLICT (name) DO UPDATE
           SET next_at = excluded.next_at
         WHERE duty.next_at <= {NOW}
        RETURNING name
    """

    def claim_duty(self, name: str, *, every: timedelta) -> bool:
        return bool(self._connections.fetch(self._CLAIM_DUTY, name=name, every=every))

    def record_worker(self, worker: WorkerRecord) -> None:
        worker_records.record(self._connections, worker)

    def record_delivery(self, notes: Sequence[DeliveryNote]) -> None:
        delivery_notes.record(self._connections, notes)

    def remove_worker(self, worker_id: str) -> None:
        worker_records.remove(self._connections, worker_id)

    def prune_workers(self, *, unseen_for: timedelta, keep: timedelta) -> int:
        return worker_records.prune(self._connections, unseen_for=unseen_for, keep=keep)

    def record_refusals(self, refusals: Sequence[Refusal]) -> None:
        worker_records.record_refusals(self._connections, refusals)

    _PRUNE_AUDIT: LiteralString = f"""
        DELETE FROM th_audit
         WHERE id = ANY (ARRAY(
               SELECT id
                 FROM th_audit
                WHERE at <= {NOW} - %(older_than)s
                ORDER BY at, id
                LIMIT %(limit)s
               ))
        RETURNING id
    """

    def prune_audit(self, *, older_than: timedelta, limit: int) -> int:
        return len(self._connections.fetch(self._PRUNE_AUDIT, older_than=older_than, limit=limit))

    _PUBLISHER_SEEN: LiteralString = f"""
        seen AS (
            INSERT INTO th_settings (name, value)
            SELECT 'publisher_seen_at',
                   to_char({NOW} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
             WHERE NOT EXISTS (
                   SELECT
                     FROM th_settings
                    WHERE name = 'publisher_seen_at'
                      AND value::timestamptz > {NOW} - %(noted)s
                      AND value::timestamptz <= {NOW}
                   )
                ON CONFLICT (name) DO UPDATE
               SET value = excluded.value
        )"""
    _CLAIM_OUTBOX: LiteralString = f"""
        WITH {_PUBLISHER_SEEN},
        turn AS (
            SELECT job_id, life
              FROM th_outbox
             WHERE published_at IS NULL
               AND given_up_at IS NULL
               AND next_at <= {NOW}
             ORDER BY dead_at, job_id, life
             LIMIT %(limit)s
               FOR UPDATE SKIP LOCKED
        )
        UPDATE th_outbox AS event
           SET attempts = event.attempts + 1,
               next_at = {NOW} + %(lock)s
          FROM turn
         WHERE event.job_id = ANY (ARRAY[turn.job_id])
           AND event.life = turn.life
        RETURNING {OUTBOX}
    """

    def claim_outbox(self, *, limit: int, lock: timedelta) -> list[OutboxRow]:
        claimed = self._connections.fetch(self._CLAIM_OUTBOX, limit=limit, lock=lock, noted=PUBLISHER_NOTED)
        rows = map(outbox_row, claimed)
        return sorted(rows, key=lambda row: (row.event.dead_at, row.event.event_id))

    _SETTLE_OUTBOX: LiteralString = f"""
        UPDATE th_outbox AS event
           SET published_at = CASE WHEN asked.error IS NULL THEN {NOW} END,
               given_up_at = CASE WHEN asked.error IS NOT NULL AND asked.again_in IS NULL THEN {NOW} END,
               next_at = coalesce({NOW} + asked.again_in, event.next_at),
               last_error = coalesce(asked.error, event.last_error)
          FROM (
               SELECT *
                 FROM unnest(%(ids)s::uuid[], %(lives)s::text[], %(errors)s::text[], %(agains)s::interval[])
                {LIMIT_TO_IDS}
               ) AS asked (job_id, life, error, again_in)
         WHERE event.job_id = ANY (ARRAY[asked.job_id])
           AND event.life::text = asked.life
           -- Written so that the planner cannot scan the index of unpublished events for it.
           AND coalesce(event.published_at, event.given_up_at) IS NULL
        RETURNING event.job_id, event.life
    """

    def settle_outbox(self, results: Sequence[Published | Unpublished]) -> list[bool]:
        names = [each.event_id.rpartition(":") for each in results]
        rows = self._connections.fetch(
            self._SETTLE_OUTBOX,
            ids=[_uuid(job) for job, _, _ in names],
            lives=[life for _, _, life in names],
            errors=[None if isinstance(each, Published) else each.error for each in results],
            agains=[None if isinstance(each, Published) else each.retry_in for each in results],
        )
        done = {f"{job_id}:{life}" for job_id, life in rows}
        return [each.event_id in done for each in results]

    _CLOSE: LiteralString = f"""
        WITH unpublished AS (
            SELECT job_id, life
              FROM th_outbox
             WHERE {{only}}
               AND next_at <= {NOW}
               AND dead_at <= {NOW} - %(older_than)s
               AND NOT EXISTS (
                   SELECT
                     FROM th_settings
                    WHERE name = 'publisher_seen_at'
                      AND value::timestamptz > {NOW} - %(unseen_for)s
                   )
             ORDER BY dead_at, job_id, life
             LIMIT %(limit)s
               FOR UPDATE SKIP LOCKED
        )
        UPDATE th_outbox AS event
           SET given_up_at = {NOW},
               last_error = %(reason)s
          FROM unpublished
         WHERE event.job_id = ANY (ARRAY[unpublished.job_id])
           AND event.life = unpublished.life
        RETURNING event.job_id
    """
    _CLOSE_OUTBOX: LiteralString = _CLOSE.format(only="published_at IS NULL AND given_up_at IS NULL")
    # Written so that the planner cannot scan the index of unpublished events for it.
    _CLOSE_OUTBOX_OF_JOBS: LiteralString = _CLOSE.format(
        only="job_id = ANY (%(ids)s) AND coalesce(published_at, given_up_at) IS NULL"
    )

    def close_outbox(
        self,
        reason: str,
        *,
        unseen_for: timedelta,
        older_than: timedelta,
        limit: int,
        job_ids: Sequence[JobId] | None = None,
    ) -> int:
        close = self._CLOSE_OUTBOX if job_ids is None else self._CLOSE_OUTBOX_OF_JOBS
        parameters: dict[str, Any] = {} if job_ids is None else {"ids": list(job_ids)}
        parameters |= {"reason": reason, "unseen_for": unseen_for, "older_than": older_than, "limit": limit}
        return len(self._connections.fetch(close, **parameters))

    _DUE_SCHEDULES: LiteralString = f"""
        SELECT {SCHEDULE}
          FROM th_schedules
         WHERE paused_at IS NULL
           AND next_at <= {NOW}
           AND {_MAY_FIRE}
         ORDER BY next_at, name
         LIMIT %(limit)s
    """
    _DUE_SCHEDULES_2: LiteralString = _DUE_SCHEDULES.replace(SCHEDULE, SCHEDULE_2).replace(_MAY_FIRE, "true")

    def due_schedules(self, *, limit: int, alive_within: timedelta) -> list[Schedule]:
        due = self._DUE_SCHEDULES if self._has_declared else self._DUE_SCHEDULES_2
        return [schedule(row) for row in self._connections.fetch(due, limit=limit, alive_within=alive_within)]

    _ADVANCE_SCHEDULE: LiteralString = """
        UPDATE th_schedules
           SET next_at = %(next_at)s,
               fired_at = CASE WHEN %(last_job_id)s::uuid IS NULL THEN fired_at ELSE %(fired)s END,
               last_job_id = coalesce(%(last_job_id)s, last_job_id)
         WHERE name = %(name)s
           AND next_at = %(fired)s
        RETURNING name
    """

    def advance_schedule(
        self,
        name: str,
        *,
        fired: datetime,
        next_at: datetime | None,
        jobs: Sequence[NewJob] = (),
        runs: Sequence[ScheduleRun] = (),
    ) -> bool:
        last = jobs[-1].id if jobs else None
        kept = runs[-KEPT_RUNS:] if schedule_runs.has_runs(self._connections) else ()

        def fire() -> Steps[bool]:
            changes = {"name": name, "fired": fired, "next_at": next_at, "last_job_id": last}
            if not (yield self._ADVANCE_SCHEDULE, changes):
                return False
            yield from insert(jobs, repeat=False)
            if kept:
                yield schedule_runs.add_statement(kept)
            return True

        has_fired = self._connections.transact(fire)
        if has_fired:
            self._notifier.notify(ready_queues(jobs))
        return has_fired

    def record_runs(self, runs: Sequence[ScheduleRun]) -> None:
        schedule_runs.add(self._connections, runs)

    _PRUNE_SCHEDULES: LiteralString = f"""
        WITH renewed AS (
            UPDATE th_schedules
               SET declared_at = {NOW}
             WHERE name = ANY (ARRAY(
                   SELECT name
                     FROM th_schedules
                    WHERE declared_at IS NOT NULL
                      AND {_IS_DECLARED}
                    ORDER BY name
                      FOR UPDATE  -- in the order of put_schedules
                   ))
        )
        DELETE FROM th_schedules
         WHERE declared_at <= {NOW} - %(undeclared_for)s
           AND paused_at IS NULL
           AND NOT {_IS_DECLARED}
        RETURNING name
    """

    def prune_schedules(self, *, undeclared_for: timedelta, alive_within: timedelta) -> int:
        if not self._has_declared:
            return 0
        parameters = {"undeclared_for": undeclared_for, "alive_within": alive_within}
        return len(self._connections.fetch(self._PRUNE_SCHEDULES, **parameters))

    @property
    def _has_declared(self) -> bool:
        return self._connections.schema_version >= DECLARED_VERSION

    _RESUME_PAUSED: LiteralString = f"""
        DELETE FROM th_queues
         WHERE paused_until <= {NOW}
        RETURNING name
    """

    def resume_paused(self) -> list[str]:
        if not schedule_runs.has_runs(self._connections):
            return []
        return sorted(name for (name,) in self._connections.fetch(self._RESUME_PAUSED))

    def roll_up(self, *, keep: timedelta) -> int:
        """Update the statistics, and create the partitions of the coming days."""
        self._retention.make_days()
        return roll_up.roll_up(self._connections, keep=keep)

    def record_statistics(self, tallies: Sequence[StatisticTally], *, version: str | None = None) -> None:
        statistics.record(self._connections, tallies, version=version)


def _uuid(text: str) -> UUID | None:
    """Return the UUID that *text* is the canonical form of, or None."""
    try:
        uuid = UUID(text)
    except ValueError:
        return None
    return uuid if str(uuid) == text else None
