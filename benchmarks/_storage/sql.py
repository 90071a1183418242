"""The columns, constraints and statement parts that all designs share."""

from __future__ import annotations

from typing import Final

# Wide fixed-size columns first, to avoid alignment padding. Names compare as bytes in every locale.
COLUMNS: Final = """
    id uuid NOT NULL,
    lease_token uuid,
    settled_token uuid,
    scheduled_for timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    lease_expires_at timestamptz,
    processing_started_at timestamptz,
    completed_at timestamptz,
    failed_at timestamptz,
    dead_at timestamptz,
    cancel_requested_at timestamptz,
    dispatch_at timestamptz,
    sent_at timestamptz,
    timeout interval,
    priority integer NOT NULL DEFAULT 0,
    attempt_count integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    life integer NOT NULL DEFAULT 1,
    sends integer NOT NULL DEFAULT 0,
    resends integer NOT NULL DEFAULT 0,
    releases integer NOT NULL DEFAULT 0,
    status text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    worker_id text,
    idempotency_key text,
    dead_reason text,
    last_error text,
    metadata jsonb NOT NULL DEFAULT '{}',
    payload bytea NOT NULL,
    result bytea,
    CONSTRAINT th_jobs_attempts CHECK (attempt_count >= 0 AND max_attempts >= 1),
    CONSTRAINT th_jobs_lease CHECK (
        (status = 'PROCESSING') = (lease_token IS NOT NULL)
        AND (lease_token IS NULL) = (lease_expires_at IS NULL)
    ),
    CONSTRAINT th_jobs_completed CHECK (
        (status IN ('SUCCEEDED', 'DEAD', 'CANCELED')) = (completed_at IS NOT NULL)
    ),
    CONSTRAINT th_jobs_dead CHECK (
        (status = 'DEAD') = (dead_at IS NOT NULL)
        AND (dead_at IS NULL) = (dead_reason IS NULL)
    )
"""
NAMES: Final = [line.split()[0] for line in COLUMNS.split("CONSTRAINT")[0].strip().splitlines()]

WAITING: Final = "('PENDING', 'ENQUEUED', 'FAILED')"

AROUND: Final = """
    CREATE TABLE th_attempts (
        job_id uuid NOT NULL,
        token uuid NOT NULL,
        life integer NOT NULL,
        attempt integer NOT NULL,
        worker_id text,
        started_at timestamptz,
        ended_at timestamptz NOT NULL,
        event text NOT NULL,
        status text NOT NULL,
        outcome text NOT NULL,
        error_type text,
        message text,
        traceback text,
        fingerprint text,
        PRIMARY KEY (job_id, token)
    );
    CREATE TABLE th_queues (
        name text COLLATE "C" PRIMARY KEY,
        paused_at timestamptz NOT NULL
    );
    CREATE FUNCTION th_refuse_transition() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'th_jobs: no move leads from % to %', OLD.status, NEW.status;
    END $$;
    CREATE EXTENSION pg_stat_statements;
    CREATE EXTENSION pgstattuple;
"""
_TRANSITION: Final = """
    CREATE TRIGGER th_jobs_transition BEFORE UPDATE ON {table} FOR EACH ROW
    WHEN (
        NEW.status <> OLD.status AND NOT (
            (OLD.status IN ('PENDING', 'ENQUEUED', 'FAILED')
                AND NEW.status IN ('ENQUEUED', 'PROCESSING', 'DEAD', 'CANCELED'))
            OR OLD.status = 'PROCESSING'
            OR (OLD.status IN ('DEAD', 'CANCELED') AND NEW.status = 'PENDING')
        )
    )
    EXECUTE FUNCTION th_refuse_transition();
"""

INSERT: Final = """
    INSERT INTO {table} (id, type, queue, payload, status, scheduled_for, created_at, max_attempts)
    SELECT id, 'email', 'default', payload, 'PENDING', statement_timestamp(), statement_timestamp(), 3
      FROM unnest(%(ids)s::uuid[], %(payloads)s::bytea[]) AS new (id, payload)
"""
READY: Final = """
    SELECT id
      FROM {table}
     WHERE queue = %(queue)s
       AND status IN ('PENDING', 'ENQUEUED', 'FAILED')
       AND scheduled_for <= statement_timestamp()
       AND (status <> 'ENQUEUED' OR scheduled_for < statement_timestamp() - %(overdue_after)s::interval)
       AND attempt_count < max_attempts
       AND (%(types)s::text[] IS NULL OR type = ANY(%(types)s::text[]))
       AND NOT EXISTS (SELECT FROM th_queues WHERE name = %(queue)s)
       {after}
     ORDER BY priority, scheduled_for, id
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
"""
AFTER: Final = "AND (priority, scheduled_for, id) > (%(priority)s, %(scheduled_for)s, %(id)s)"
TAKE: Final = """
    UPDATE {table}
       SET status = 'PROCESSING',
           lease_token = %(token)s,
           lease_expires_at = statement_timestamp() + interval '30 s',
           worker_id = 'worker',
           processing_started_at = statement_timestamp(),
           dispatch_at = NULL,
           resends = 0,
           attempt_count = attempt_count + 1
     WHERE id = ANY(ARRAY({ready}))
       {where}
    RETURNING id, priority, scheduled_for, type, payload, attempt_count, max_attempts, timeout, lease_expires_at
"""
HELD: Final = """
     WHERE id = ANY(%(ids)s)
       AND lease_token = %(token)s
       AND lease_expires_at > statement_timestamp()
"""
ACK: Final = """
    UPDATE th_jobs
       SET status = 'SUCCEEDED',
           settled_token = lease_token,
           lease_token = NULL,
           lease_expires_at = NULL,
           completed_at = statement_timestamp(),
           result = NULL
    {held}
       {where}
    RETURNING id
"""

# Time-ordered ids, like those of the client. PostgreSQL 15 has no function for them.
_ID: Final = """
    (lpad(to_hex((extract(epoch FROM {moment}) * 1000)::bigint), 12, '0')
        || '7' || lpad(to_hex(mod(n, 4096)), 3, '0') || '8' || substr(md5(n::text), 1, 15))::uuid
"""
BACKLOG: Final = f"""
    INSERT INTO th_jobs (id, type, queue, payload, status, scheduled_for, created_at, max_attempts)
    SELECT {_ID.format(moment="due")}, 'email', 'default', %(payload)s, 'PENDING', due, due, 3
      FROM generate_series(1, %(count)s) AS n,
           LATERAL (SELECT statement_timestamp() - interval '1 h' + n * interval '1 ms' AS due) AS moments
"""
# Spread over the last week.
HISTORY: Final = f"""
    INSERT INTO {{table}} (
        id, type, queue, payload, status, scheduled_for, created_at, max_attempts,
        attempt_count, worker_id, processing_started_at, settled_token, completed_at
    )
    SELECT {_ID.format(moment="done")}, 'email', 'default', %(payload)s, 'SUCCEEDED', done, done, 3,
           1, 'worker', done, gen_random_uuid(), done
      FROM generate_series(1, %(count)s) AS n,
           LATERAL (SELECT statement_timestamp() - interval '7 days' * n / %(count)s AS done) AS moments
"""


def transition(*tables: str) -> str:
    """Return the triggers that reject transitions missing from the transition table.

    They fire BEFORE, because a row that changes partition fires no AFTER UPDATE trigger. Their
    WHEN avoids calling the function, but they are not free: PostgreSQL locks a row before it
    evaluates such a trigger, which writes a WAL record unless the row is already locked.
    """
    return "".join(_TRANSITION.format(table=table) for table in tables)


def daily(parent: str) -> str:
    """Return daily partitions from a week ago to a week ahead, and a default partition."""
    return f"""
        DO $$
        BEGIN
            FOR day IN -7..7 LOOP
                EXECUTE format(
                    'CREATE TABLE {parent}_%s PARTITION OF {parent} FOR VALUES FROM (%L) TO (%L)',
                    day + 7, current_date + day, current_date + day + 1
                );
            END LOOP;
        END $$;
        CREATE TABLE {parent}_default PARTITION OF {parent} DEFAULT;
    """
