-- The captured log lines of attempts, as a JSON array of [time, level, logger, text].
CREATE TABLE th_attempt_logs (
    job_id BLOB NOT NULL,
    token BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    worker_id TEXT,
    dropped INTEGER NOT NULL,
    lines TEXT NOT NULL,
    saved_at INTEGER NOT NULL,
    PRIMARY KEY (job_id, token)
);

-- Bulk operations. job_ids are the jobs that are still to be changed by their ids, 16 bytes each; created_at is also the
-- time after which jobs came too late to join.
CREATE TABLE th_operations (
    id BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    kind TEXT NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    filter TEXT CHECK (filter IS NULL OR json_valid(filter)),
    options TEXT NOT NULL CHECK (json_valid(options)),
    matched INTEGER NOT NULL,
    is_capped INTEGER NOT NULL,
    digest TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'running', 'done', 'stopped')),
    created_at INTEGER NOT NULL,
    next_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    stopped_by TEXT,
    cursor BLOB,
    is_searched INTEGER NOT NULL,
    job_ids BLOB NOT NULL,
    step INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    refused TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(refused)),
    CHECK ((ended_at IS NULL) = (state IN ('waiting', 'running')))
);

CREATE INDEX th_operations_created ON th_operations (created_at, id);
CREATE INDEX th_operations_unfinished ON th_operations (next_at, id) WHERE ended_at IS NULL;
CREATE INDEX th_operations_ended ON th_operations (ended_at, id) WHERE ended_at IS NOT NULL;

-- Statistics.

-- Jobs that arrived (PENDING), and that became FAILED or ENQUEUED less those that no longer are, since the last
-- roll-up: few rows, so that they cost a job little. An insert counts its jobs itself: a trigger would take 1.1 µs for
-- each, a seventh of an insert.
CREATE TABLE th_waiting_tallies (
    queue TEXT NOT NULL,
    status TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (queue, status)
) WITHOUT ROWID;

-- Jobs that have not ended, and those of them that are FAILED or ENQUEUED, but for the tallies and th_ended. Few jobs
-- are PROCESSING, so that these are counted, and the others are PENDING.
CREATE TABLE th_living (
    queue TEXT PRIMARY KEY NOT NULL,
    living INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    enqueued INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO th_living (queue, living, failed, enqueued)
SELECT queue, sum(living), sum(failed), sum(enqueued)
  FROM (
       SELECT queue, count(*) AS living, total(status = 'FAILED') AS failed, total(status = 'ENQUEUED') AS enqueued
         FROM th_jobs
        WHERE completed_at IS NULL
        GROUP BY queue
        UNION ALL
       SELECT queue, sum(count), 0, 0
         FROM th_ended
        GROUP BY queue
       )
 GROUP BY queue;

-- One trigger for both checks, because each takes time for every job. It fires for what the transition table does not
-- know, and for moves from or to FAILED and ENQUEUED, which are counted. The moves that every job makes come first.
DROP TRIGGER th_jobs_transition;
CREATE TRIGGER th_jobs_transition AFTER UPDATE OF status ON th_jobs
    WHEN NEW.status <> OLD.status
        AND (
            OLD.status <> 'PROCESSING' AND NOT (NEW.status = 'PROCESSING' AND OLD.completed_at IS NULL)
            OR OLD.status = 'FAILED' OR OLD.status = 'ENQUEUED' OR NEW.status = 'FAILED' OR NEW.status = 'ENQUEUED'
        )
BEGIN
    SELECT RAISE(ABORT, 'th_jobs: the transition table does not know this move')
     WHERE OLD.status <> 'PROCESSING'
       AND NOT (NEW.status = 'PROCESSING' AND OLD.completed_at IS NULL)
       AND NOT (OLD.completed_at IS NULL AND NEW.status IN ('ENQUEUED', 'DEAD', 'CANCELED'))
       AND NOT (OLD.status IN ('DEAD', 'CANCELED') AND NEW.status = 'PENDING');
    INSERT INTO th_waiting_tallies
    SELECT OLD.queue, OLD.status, -1
     WHERE OLD.status = 'FAILED' OR OLD.status = 'ENQUEUED'
        ON CONFLICT DO UPDATE SET count = count - 1;
    INSERT INTO th_waiting_tallies
    SELECT NEW.queue, NEW.status, 1
     WHERE NEW.status = 'FAILED' OR NEW.status = 'ENQUEUED'
        ON CONFLICT DO UPDATE SET count = count + 1;
END;

-- A job that was requeued arrives again.
CREATE TRIGGER th_jobs_return AFTER UPDATE OF completed_at ON th_jobs
    WHEN NEW.completed_at IS NULL AND OLD.completed_at IS NOT NULL
BEGIN
    INSERT INTO th_waiting_tallies VALUES (NEW.queue, 'PENDING', 1)
        ON CONFLICT DO UPDATE SET count = count + 1;
END;

-- Counts by minute for some hours, and by quarter and hour. What a key is depends on the metric: the status of ended
-- jobs, the outcome of attempts, the bucket of wait and run times.
CREATE TABLE th_statistics (
    metric TEXT NOT NULL,
    step INTEGER NOT NULL,
    minute INTEGER NOT NULL,
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    key TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (metric, step, minute, queue, type, key)
) WITHOUT ROWID;

CREATE INDEX th_statistics_queue ON th_statistics (metric, step, queue, minute);
CREATE INDEX th_statistics_minute ON th_statistics (step, minute);

-- Counts since the last roll-up.
CREATE TABLE th_statistic_tallies (
    metric TEXT NOT NULL,
    minute INTEGER NOT NULL,
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    key TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (metric, minute, queue, type, key)
) WITHOUT ROWID;

CREATE TRIGGER th_attempts_lost AFTER INSERT ON th_attempts
    WHEN NEW.outcome = 'LOST' OR NEW.outcome = 'CLOCK'
BEGIN
    INSERT INTO th_statistic_tallies (metric, minute, queue, type, key, count)
    SELECT 'attempts', NEW.ended_at / 60000000 * 60000000, queue, type, NEW.outcome, 1
      FROM th_jobs
     WHERE id = NEW.job_id
        ON CONFLICT DO UPDATE SET count = count + 1;
END;

-- How many jobs waited and ran at the last roll-up of each minute, and for how long the oldest had been due.
CREATE TABLE th_depths (
    minute INTEGER NOT NULL,
    queue TEXT NOT NULL,
    waiting INTEGER NOT NULL,
    running INTEGER NOT NULL,
    oldest_age INTEGER,
    PRIMARY KEY (minute, queue)
) WITHOUT ROWID;

CREATE INDEX th_depths_queue ON th_depths (queue, minute);

CREATE INDEX th_depths_fine ON th_depths (minute) WHERE minute % 900000000 <> 0;

CREATE TABLE th_dead_hours (
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    hour INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (queue, type, fingerprint, hour)
) WITHOUT ROWID;

CREATE INDEX th_dead_hours_hour ON th_dead_hours (hour);

CREATE TRIGGER th_jobs_dead_hour AFTER UPDATE OF dead_at ON th_jobs
    WHEN NEW.dead_at IS NOT NULL AND OLD.dead_at IS NULL
BEGIN
    INSERT INTO th_dead_hours
    VALUES (NEW.queue, NEW.type, coalesce(NEW.fingerprint, ''), NEW.dead_at / 3600000000 * 3600000000, 1)
        ON CONFLICT DO UPDATE SET count = count + 1;
END;

-- Versions of the application whose workers sent heartbeats.
CREATE TABLE th_versions (
    version TEXT PRIMARY KEY NOT NULL,
    first_seen INTEGER NOT NULL,
    last_seen INTEGER NOT NULL
) WITHOUT ROWID;

-- Timelines and workers.

-- Settlements, and extensions of leases, that were refused because the attempt had lost its lease. The refused worker
-- adds them later, if it can. The other columns of the attempt are in th_attempts.
CREATE TABLE th_refusals (
    job_id BLOB NOT NULL,
    token BLOB NOT NULL,
    at INTEGER NOT NULL,
    event TEXT NOT NULL,
    PRIMARY KEY (job_id, token)
) WITHOUT ROWID;

-- An attempt is deleted only with its job.
CREATE TRIGGER th_attempts_removal AFTER DELETE ON th_attempts
BEGIN
    DELETE FROM th_refusals WHERE job_id = OLD.job_id AND token = OLD.token;
END;

-- What was lost with a worker.
CREATE INDEX th_attempts_by_worker ON th_attempts (worker_id, ended_at, job_id) WHERE outcome = 'LOST';

ALTER TABLE th_workers ADD COLUMN busy_slots INTEGER NOT NULL DEFAULT 0;
ALTER TABLE th_workers ADD COLUMN version TEXT;
ALTER TABLE th_workers ADD COLUMN library TEXT;

-- Workers that have stopped, or were not seen for minutes. The others read th_workers only.
CREATE TABLE th_past_workers (
    id TEXT PRIMARY KEY NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    queues TEXT NOT NULL,
    types TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    lost_slots INTEGER NOT NULL,
    schedules TEXT NOT NULL,
    busy_slots INTEGER NOT NULL,
    version TEXT,
    library TEXT,
    stopped_at INTEGER
) WITHOUT ROWID;

-- What was done to one job.
CREATE INDEX th_audit_target ON th_audit (target, at, id);
CREATE INDEX th_audit_actor ON th_audit (actor, at, id);
CREATE INDEX th_audit_action ON th_audit (action, at, id);

-- Queues, schedules and keys.

-- The janitor resumes a queue after paused_until.
ALTER TABLE th_queues ADD COLUMN paused_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE th_queues ADD COLUMN paused_until INTEGER;

-- What became of fire times: a job, or why there is none. Without a fire time, a person asked for the run.
CREATE TABLE th_schedule_runs (
    number INTEGER PRIMARY KEY,
    schedule TEXT NOT NULL,
    fire_time INTEGER,
    job_id BLOB,
    skipped TEXT,
    at INTEGER NOT NULL
);

CREATE INDEX th_schedule_runs_schedule ON th_schedule_runs (schedule, number);

CREATE TRIGGER th_schedules_removal AFTER DELETE ON th_schedules
BEGIN
    DELETE FROM th_schedule_runs WHERE schedule = OLD.name;
END;

-- Sessions have the key that they were made from, and are revoked with it.
ALTER TABLE th_api_keys ADD COLUMN parent TEXT;
