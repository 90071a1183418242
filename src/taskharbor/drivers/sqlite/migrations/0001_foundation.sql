-- Moments are INTEGER microseconds since 1970 in UTC, durations INTEGER microseconds,
-- ids and tokens BLOBs of 16 bytes, whose order is that of the UUIDs.
--
-- What runs for every move asks for NULLs and single states, never IN a list of three or
-- more: SQLite builds a table of such a list, in a trigger for every row (ADR 0006).

-- What is small and often asked for comes before what may be large.
CREATE TABLE th_jobs (
    id BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    status TEXT NOT NULL CONSTRAINT th_jobs_status CHECK (
        status = 'PENDING' OR status = 'PROCESSING' OR status = 'SUCCEEDED'
        OR status IN ('ENQUEUED', 'FAILED', 'DEAD', 'CANCELED')
    ),
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    priority INTEGER NOT NULL,
    scheduled_for INTEGER NOT NULL,
    attempt_count INTEGER NOT NULL CHECK (attempt_count >= 0),
    max_attempts INTEGER NOT NULL CHECK (max_attempts >= 1),
    timeout INTEGER CHECK (timeout > 0),
    created_at INTEGER NOT NULL,
    lease_token BLOB,
    lease_expires_at INTEGER,
    worker_id TEXT,
    processing_started_at INTEGER,
    completed_at INTEGER,
    settled_token BLOB,
    failed_at INTEGER,
    dead_at INTEGER,
    cancel_requested_at INTEGER,
    dispatch_at INTEGER,
    sent_at INTEGER,
    sends INTEGER NOT NULL DEFAULT 0,
    resends INTEGER NOT NULL DEFAULT 0,
    releases INTEGER NOT NULL DEFAULT 0,
    life INTEGER NOT NULL DEFAULT 1,
    idempotency_key TEXT,
    dead_reason TEXT,
    fingerprint TEXT,
    last_error TEXT,
    metadata TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(metadata)),
    progress TEXT CHECK (progress IS NULL OR json_valid(progress)),
    payload BLOB NOT NULL,
    result BLOB,
    CONSTRAINT th_jobs_lease CHECK (
        (status = 'PROCESSING') = (lease_token IS NOT NULL)
        AND (lease_token IS NULL) = (lease_expires_at IS NULL)
    ),
    CONSTRAINT th_jobs_completed CHECK (
        (status = 'SUCCEEDED' OR status = 'DEAD' OR status = 'CANCELED') = (completed_at IS NOT NULL)
    ),
    CONSTRAINT th_jobs_dead CHECK (
        (status = 'DEAD') = (dead_at IS NOT NULL)
        AND (dead_at IS NULL) = (dead_reason IS NULL)
    )
) WITHOUT ROWID;

-- What a reserve walks: due jobs of one queue in the order they run, whatever the history.
-- A job waits that has neither a lease nor an end. What follows the id is there to be counted
-- without a look at the table.
CREATE INDEX th_jobs_waiting ON th_jobs (
    queue, priority, scheduled_for, id, status, lease_expires_at, completed_at
)
    WHERE lease_expires_at IS NULL AND completed_at IS NULL;

CREATE INDEX th_jobs_processing ON th_jobs (lease_expires_at, id)
    WHERE lease_expires_at IS NOT NULL;

-- What retention walks, oldest end first.
CREATE INDEX th_jobs_finished ON th_jobs (completed_at)
    WHERE completed_at IS NOT NULL AND dead_at IS NULL;

CREATE INDEX th_jobs_dead ON th_jobs (completed_at)
    WHERE dead_at IS NOT NULL;

-- Dead letters as people look for them: all, those of one error, and the ends of a group.
CREATE INDEX th_jobs_dead_id ON th_jobs (id)
    WHERE dead_at IS NOT NULL;

CREATE INDEX th_jobs_dead_fingerprint ON th_jobs (fingerprint, id)
    WHERE dead_at IS NOT NULL;

CREATE INDEX th_jobs_dead_group ON th_jobs (queue, type, fingerprint, dead_at, id)
    WHERE dead_at IS NOT NULL;

-- Always empty, if all is well: what the janitor's net looks at.
CREATE INDEX th_jobs_spent ON th_jobs (id)
    WHERE lease_expires_at IS NULL AND completed_at IS NULL AND attempt_count >= max_attempts;

-- No statement, ours or another's, makes a move that the transition table does not know.
-- The moves that every job makes come first.
CREATE TRIGGER th_jobs_transition AFTER UPDATE OF status ON th_jobs
    WHEN NEW.status <> OLD.status
        AND OLD.status <> 'PROCESSING'
        AND NOT (NEW.status = 'PROCESSING' AND OLD.completed_at IS NULL)
        AND NOT (OLD.completed_at IS NULL AND NEW.status IN ('ENQUEUED', 'DEAD', 'CANCELED'))
        AND NOT (OLD.status IN ('DEAD', 'CANCELED') AND NEW.status = 'PENDING')
BEGIN
    SELECT RAISE(ABORT, 'th_jobs: the transition table does not know this move');
END;

-- Nor does INSERT OR REPLACE, which would begin a job anew.
CREATE TRIGGER th_jobs_beginning BEFORE INSERT ON th_jobs
    WHEN NEW.status <> 'PENDING' OR EXISTS (SELECT 1 FROM th_jobs WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'th_jobs: a job begins as PENDING, and once');
END;

-- The key comes first, so that its holders are found whatever their queue.
CREATE TABLE th_keys (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    job_id BLOB NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (key, queue)
) WITHOUT ROWID;

CREATE INDEX th_keys_job ON th_keys (job_id);

CREATE TABLE th_attempts (
    job_id BLOB NOT NULL,
    token BLOB NOT NULL,
    life INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    worker_id TEXT,
    started_at INTEGER,
    ended_at INTEGER NOT NULL,
    event TEXT NOT NULL,
    status TEXT NOT NULL,
    outcome TEXT NOT NULL,
    error_type TEXT,
    message TEXT,
    traceback TEXT,
    fingerprint TEXT,
    PRIMARY KEY (job_id, token)
) WITHOUT ROWID;

CREATE TABLE th_outbox (
    job_id BLOB NOT NULL,
    life INTEGER NOT NULL,
    type TEXT NOT NULL,
    queue TEXT NOT NULL,
    worker_id TEXT,
    attempt_count INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    error TEXT NOT NULL,
    dead_at INTEGER NOT NULL,
    next_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    last_error TEXT,
    published_at INTEGER,
    given_up_at INTEGER,
    PRIMARY KEY (job_id, life)
) WITHOUT ROWID;

CREATE INDEX th_outbox_pending ON th_outbox (next_at)
    WHERE published_at IS NULL AND given_up_at IS NULL;

-- How many dead letters died of the same.
CREATE TABLE th_dead_groups (
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (queue, type, fingerprint)
) WITHOUT ROWID;

-- Every death has its event and is counted, by whatever statement the job died: none can without a dead_at.
CREATE TRIGGER th_jobs_death AFTER UPDATE OF dead_at ON th_jobs
    WHEN NEW.dead_at IS NOT NULL AND OLD.dead_at IS NULL
BEGIN
    INSERT INTO th_outbox (job_id, life, type, queue, worker_id, attempt_count, max_attempts, error, dead_at, next_at)
    VALUES (NEW.id, NEW.life, NEW.type, NEW.queue, NEW.worker_id, NEW.attempt_count, NEW.max_attempts,
        coalesce(NEW.last_error, NEW.dead_reason), NEW.dead_at, NEW.dead_at);
    INSERT INTO th_dead_groups VALUES (NEW.queue, NEW.type, coalesce(NEW.fingerprint, ''), 1)
        ON CONFLICT DO UPDATE SET count = count + 1;
END;

CREATE TRIGGER th_jobs_dead_revival AFTER UPDATE OF dead_at ON th_jobs
    WHEN NEW.dead_at IS NULL AND OLD.dead_at IS NOT NULL
BEGIN
    UPDATE th_dead_groups SET count = count - 1
     WHERE queue = OLD.queue AND type = OLD.type AND fingerprint = coalesce(OLD.fingerprint, '');
END;

CREATE TRIGGER th_jobs_dead_removal AFTER DELETE ON th_jobs
    WHEN OLD.dead_at IS NOT NULL
BEGIN
    UPDATE th_dead_groups SET count = count - 1
     WHERE queue = OLD.queue AND type = OLD.type AND fingerprint = coalesce(OLD.fingerprint, '');
END;

CREATE TABLE th_queues (
    name TEXT PRIMARY KEY NOT NULL,
    paused_at INTEGER NOT NULL,
    paused_by TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE th_duties (
    name TEXT PRIMARY KEY NOT NULL,
    next_at INTEGER NOT NULL
) WITHOUT ROWID;

-- At most one row: the last jump ahead of the clock.
CREATE TABLE th_clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    jumped_from INTEGER NOT NULL,
    jumped_to INTEGER NOT NULL,
    hold_until INTEGER NOT NULL
);

CREATE TABLE th_workers (
    id TEXT PRIMARY KEY NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    queues TEXT NOT NULL,
    types TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE th_schedules (
    name TEXT PRIMARY KEY NOT NULL,
    cron TEXT NOT NULL,
    timezone TEXT NOT NULL,
    type TEXT NOT NULL,
    queue TEXT NOT NULL,
    payload BLOB NOT NULL,
    options TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(options)),
    next_at INTEGER,
    fired_at INTEGER,
    paused_at INTEGER,
    last_job_id BLOB
) WITHOUT ROWID;

CREATE TABLE th_api_keys (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    scopes TEXT NOT NULL CHECK (json_valid(scopes)),
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) WITHOUT ROWID;

CREATE TABLE th_audit (
    id BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    detail TEXT NOT NULL CHECK (json_valid(detail))
) WITHOUT ROWID;

CREATE INDEX th_audit_at ON th_audit (at, id);

-- Counts for people: nobody counts over history. Those of final states, but for the ends in th_ended.
CREATE TABLE th_counts (
    queue TEXT NOT NULL,
    status TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (queue, status)
) WITHOUT ROWID;

CREATE TABLE th_finished (
    minute INTEGER NOT NULL,
    queue TEXT NOT NULL,
    status TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (minute, queue, status)
) WITHOUT ROWID;

-- The ends since the last roll-up: few rows, so that it costs a job little.
CREATE TABLE th_ended (
    minute INTEGER NOT NULL,
    queue TEXT NOT NULL,
    status TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (minute, queue, status)
) WITHOUT ROWID;

CREATE TRIGGER th_jobs_end AFTER UPDATE OF completed_at ON th_jobs
    WHEN NEW.completed_at IS NOT NULL AND OLD.completed_at IS NULL
BEGIN
    INSERT INTO th_ended VALUES (NEW.completed_at / 60000000 * 60000000, NEW.queue, NEW.status, 1)
        ON CONFLICT DO UPDATE SET count = count + 1;
END;

-- An end that was counted, or will be, and whose job is no longer there: the count may be below zero for a while.
CREATE TRIGGER th_jobs_revival AFTER UPDATE OF completed_at ON th_jobs
    WHEN NEW.completed_at IS NULL AND OLD.completed_at IS NOT NULL
BEGIN
    INSERT INTO th_counts VALUES (OLD.queue, OLD.status, -1)
        ON CONFLICT DO UPDATE SET count = count - 1;
END;

CREATE TRIGGER th_jobs_removal AFTER DELETE ON th_jobs
    WHEN OLD.completed_at IS NOT NULL
BEGIN
    INSERT INTO th_counts VALUES (OLD.queue, OLD.status, -1)
        ON CONFLICT DO UPDATE SET count = count - 1;
END;
