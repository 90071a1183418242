"""Maintenance duties: leases, retention, worker records, the outbox, schedules and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString
from uuid import UUID

from taskharbor.core.model import PUBLISHER_NOTED
from taskharbor.core.results import Published
from taskharbor.drivers.postgres.expire import PostgresLeaseExpiry
from taskharbor.drivers.postgres.insert import insert
from taskharbor.drivers.postgres.notify import ready_queues
from taskharbor.drivers.postgres.retention import Retention
from taskharbor.drivers.postgres.rows import LIMIT_TO_IDS, LOST_SLOTS_SINCE, NOW, OUTBOX, SCHEDULE, outbox_row, schedule
from taskharbor.drivers.postgres.schema import SETTINGS_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import NewJob, OutboxRow, Schedule, WorkerRecord
    from taskharbor.core.results import Death, Expired, Unpublished
    from taskharbor.drivers.postgres.notify import PostgresNotifier
    from taskharbor.drivers.postgres.pool import PostgresPool, Steps


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

    _RECORD_WORKER: LiteralString = f"""
        INSERT INTO th_workers (id, host, pid, queues, types, concurrency, started_at, seen_at, lost_slots)
        VALUES (%(id)s, %(host)s, %(pid)s, %(queues)s, %(types)s, %(concurrency)s, %(started_at)s, {NOW},
                %(lost_slots)s)
            ON CONFLICT (id) DO UPDATE
           SET host = excluded.host,
               pid = excluded.pid,
               queues = excluded.queues,
               types = excluded.types,
               concurrency = excluded.concurrency,
               started_at = excluded.started_at,
               seen_at = excluded.seen_at,
               lost_slots = excluded.lost_slots
    """
    _RECORD_WORKER_1: LiteralString = (  # on schema version 1
        _RECORD_WORKER.replace(", lost_slots)", ")")
        .replace(",\n                %(lost_slots)s", "")
        .replace(",\n               lost_slots = excluded.lost_slots", "")
    )

    def record_worker(self, worker: WorkerRecord) -> None:
        self._connections.fetch(
            self._RECORD_WORKER_1 if self._connections.schema_version < LOST_SLOTS_SINCE else self._RECORD_WORKER,
            id=worker.id,
            host=worker.host,
            pid=worker.pid,
            queues=list(worker.queues),
            types=list(worker.types),
            concurrency=worker.concurrency,
            started_at=worker.started_at,
            lost_slots=worker.lost_slots,
        )

    _PRUNE_WORKERS: LiteralString = f"""
        DELETE FROM th_workers
         WHERE seen_at <= {NOW} - %(unseen_for)s
        RETURNING id
    """

    def prune_workers(self, *, unseen_for: timedelta) -> int:
        return len(self._connections.fetch(self._PRUNE_WORKERS, unseen_for=unseen_for))

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

    _CLAIM_OUTBOX: LiteralString = f"""
        WITH turn AS (
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
    _CLAIM_OUTBOX_SEEN: LiteralString = _CLAIM_OUTBOX.replace("WITH turn", f"WITH {_PUBLISHER_SEEN},\n        turn")

    def claim_outbox(self, *, limit: int, lock: timedelta) -> list[OutboxRow]:
        claim = self._CLAIM_OUTBOX_SEEN if self._has_settings else self._CLAIM_OUTBOX
        rows = map(outbox_row, self._connections.fetch(claim, limit=limit, lock=lock, noted=PUBLISHER_NOTED))
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
        if not self._has_settings:
            return 0  # without th_settings the store cannot record that a publisher exists
        close = self._CLOSE_OUTBOX if job_ids is None else self._CLOSE_OUTBOX_OF_JOBS
        parameters: dict[str, Any] = {} if job_ids is None else {"ids": list(job_ids)}
        parameters |= {"reason": reason, "unseen_for": unseen_for, "older_than": older_than, "limit": limit}
        return len(self._connections.fetch(close, **parameters))

    @property
    def _has_settings(self) -> bool:
        return self._connections.schema_version >= SETTINGS_VERSION

    _DUE_SCHEDULES: LiteralString = f"""
        SELECT {SCHEDULE}
          FROM th_schedules
         WHERE paused_at IS NULL
           AND next_at <= {NOW}
         ORDER BY next_at, name
         LIMIT %(limit)s
    """

    def due_schedules(self, *, limit: int) -> list[Schedule]:
        return [schedule(row) for row in self._connections.fetch(self._DUE_SCHEDULES, limit=limit)]

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
        self, name: str, *, fired: datetime, next_at: datetime | None, jobs: Sequence[NewJob] = ()
    ) -> bool:
        last = jobs[-1].id if jobs else None

        def fire() -> Steps[bool]:
            changes = {"name": name, "fired": fired, "next_at": next_at, "last_job_id": last}
            if not (yield self._ADVANCE_SCHEDULE, changes):
                return False
            yield from insert(jobs, repeat=False)
            return True

        has_fired = self._connections.transact(fire)
        if has_fired:
            self._notifier.notify(ready_queues(jobs))
        return has_fired

    _ROLL_UP: LiteralString = """
        -- Live jobs are counted; finished jobs are summed up from tallies, so that history is never scanned.
        WITH taken AS (
            DELETE FROM th_tallies
            RETURNING minute, queue, status, ended, kept
        ),
        ends AS (
            INSERT INTO th_finished AS finished (minute, queue, status, count)
            SELECT minute, queue, status, sum(ended)
              FROM taken
             WHERE ended > 0
             GROUP BY minute, queue, status
             ORDER BY minute, queue, status
                ON CONFLICT (minute, queue, status) DO UPDATE
               SET count = finished.count + excluded.count
        ),
        living AS (
            SELECT queue, status, count(*) AS count
              FROM th_jobs
             WHERE status IN ('PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING')
             GROUP BY queue, status
        ),
        gone AS (
            UPDATE th_counts AS counted
               SET count = 0
             WHERE counted.status IN ('PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING')
               AND NOT EXISTS (
                   SELECT
                     FROM living
                    WHERE living.queue = counted.queue
                      AND living.status = counted.status
                   )
        ),
        counts AS (
            SELECT queue, status, count
              FROM living
             UNION ALL
            SELECT queue, status, sum(kept)
              FROM taken
             GROUP BY queue, status
        )
        INSERT INTO th_counts AS counted (queue, status, count)
        SELECT queue, status, count
          FROM counts
         ORDER BY queue, status
            ON CONFLICT (queue, status) DO UPDATE
           SET count = CASE
                   WHEN excluded.status IN ('SUCCEEDED', 'DEAD', 'CANCELED') THEN counted.count + excluded.count
                   ELSE excluded.count
               END
    """

    _ROLL_UP_DEAD: LiteralString = """
        WITH taken AS (
            DELETE FROM th_dead_tallies
            RETURNING queue, type, fingerprint, count
        ),
        gone AS (
            DELETE FROM th_dead_groups AS dead
             WHERE dead.count = 0
               AND NOT EXISTS (
                   SELECT
                     FROM taken
                    WHERE taken.queue = dead.queue
                      AND taken.type = dead.type
                      AND taken.fingerprint = dead.fingerprint
                   )
        )
        INSERT INTO th_dead_groups AS dead (queue, type, fingerprint, count)
        SELECT queue, type, fingerprint, sum(count)
          FROM taken
         GROUP BY queue, type, fingerprint
         ORDER BY queue, type, fingerprint
            ON CONFLICT (queue, type, fingerprint) DO UPDATE
           SET count = dead.count + excluded.count
    """

    _DROP_MINUTES: LiteralString = f"""
        DELETE FROM th_finished
         WHERE minute < {NOW} - %(keep)s
        RETURNING minute
    """

    def roll_up(self, *, keep: timedelta) -> int:
        """Update the counts, and create the partitions of the coming days."""
        self._retention.make_days()
        self._connections.fetch(self._ROLL_UP)
        self._connections.fetch(self._ROLL_UP_DEAD)
        return len(set(self._connections.fetch(self._DROP_MINUTES, keep=keep)))


def _uuid(text: str) -> UUID | None:
    """Return the UUID that *text* is the canonical form of, or None."""
    try:
        uuid = UUID(text)
    except ValueError:
        return None
    return uuid if str(uuid) == text else None
