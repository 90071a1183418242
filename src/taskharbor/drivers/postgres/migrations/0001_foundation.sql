-- Jobs lie in leaves by what becomes of them, so that those who look for work never meet
-- what is finished, and a day of finished jobs goes with one DROP. A plain UPDATE on the
-- root is both the change of state and the move.
CREATE TABLE th_jobs (
    id uuid NOT NULL,
    type text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    priority integer NOT NULL,
    status text COLLATE "C" NOT NULL DEFAULT 'PENDING',
    scheduled_for timestamptz NOT NULL,
    timeout interval CHECK (timeout > interval '0'),
    created_at timestamptz NOT NULL,
    attempt_count integer NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    max_attempts integer NOT NULL CHECK (max_attempts >= 1),
    failed_at timestamptz,
    lease_token uuid,
    lease_expires_at timestamptz,
    worker_id text,
    processing_started_at timestamptz,
    completed_at timestamptz,
    settled_token uuid,
    life integer NOT NULL DEFAULT 1,
    dispatch_at timestamptz,
    sent_at timestamptz,
    sends integer NOT NULL DEFAULT 0,
    resends integer NOT NULL DEFAULT 0,
    releases integer NOT NULL DEFAULT 0,
    dead_reason text,
    dead_at timestamptz,
    fingerprint text COLLATE "C",
    cancel_requested_at timestamptz,
    idempotency_key text,
    last_error text,
    payload bytea NOT NULL,
    result bytea,
    progress jsonb,
    metadata jsonb NOT NULL DEFAULT '{}',
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
) PARTITION BY LIST (status);

CREATE TABLE th_jobs_waiting PARTITION OF th_jobs
    FOR VALUES IN ('PENDING', 'ENQUEUED', 'FAILED')
    WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.2);
CREATE TABLE th_jobs_processing PARTITION OF th_jobs
    FOR VALUES IN ('PROCESSING')
    WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE TABLE th_jobs_dead PARTITION OF th_jobs
    FOR VALUES IN ('DEAD');
CREATE TABLE th_jobs_finished PARTITION OF th_jobs
    FOR VALUES IN ('SUCCEEDED', 'CANCELED')
    PARTITION BY RANGE (completed_at);
-- Stands behind the days, in case nobody made them: slower to empty, but nothing is refused.
CREATE TABLE th_jobs_finished_default PARTITION OF th_jobs_finished DEFAULT;

CREATE UNIQUE INDEX th_jobs_waiting_id ON th_jobs_waiting (id);
CREATE UNIQUE INDEX th_jobs_processing_id ON th_jobs_processing (id);
CREATE UNIQUE INDEX th_jobs_dead_id ON th_jobs_dead (id);
CREATE UNIQUE INDEX th_jobs_finished_default_id ON th_jobs_finished_default (id);

-- What a reserve walks: due jobs of one queue in the order they run. No waiting job is ever spent:
-- the predicate is there so that nobody who looks for an id, and does not say so, takes this
-- index for it. A plan made while the leaf was empty would then walk all of it ever after.
CREATE INDEX th_jobs_waiting_ready ON th_jobs_waiting (queue, priority, scheduled_for, id)
    WHERE attempt_count < max_attempts;
-- Messages under way, in the order they are sent again. Where no queue service is used it stays empty.
CREATE INDEX th_jobs_waiting_sent ON th_jobs_waiting (queue, priority, dispatch_at, id) WHERE dispatch_at IS NOT NULL;
-- Always empty, if all is well: what the janitor's net looks at.
CREATE INDEX th_jobs_waiting_spent ON th_jobs_waiting (id) WHERE attempt_count >= max_attempts;
CREATE INDEX th_jobs_dead_at ON th_jobs_dead (completed_at);
-- Dead letters as people look for them: those of one error, and the ends of a group. All have a
-- fingerprint: the predicate is there for the same reason as above.
CREATE INDEX th_jobs_dead_fingerprint ON th_jobs_dead (fingerprint, id) WHERE fingerprint IS NOT NULL;
CREATE INDEX th_jobs_dead_group ON th_jobs_dead (queue, type, fingerprint, dead_at, id) WHERE fingerprint IS NOT NULL;
CREATE INDEX th_jobs_finished_default_at ON th_jobs_finished_default (completed_at);

-- Makes leaves for the days from *first* on, where there is none, and says how many. A day of
-- which some jobs are in the default leaf already stays there. Whoever ends a job waits for a
-- lock that is waited for here, so that is not done for long.
CREATE FUNCTION th_make_days(first date, days integer) RETURNS integer
    LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '250ms' AS $$
DECLARE
    day date;
    leaf text;
    starts timestamptz;
    ends timestamptz;
    made integer := 0;
BEGIN
    FOR day IN SELECT first + n FROM generate_series(0, days - 1) AS n LOOP
        leaf := 'th_jobs_finished_' || to_char(day, 'YYYYMMDD');
        starts := day::timestamp AT TIME ZONE 'UTC';
        ends := (day + 1)::timestamp AT TIME ZONE 'UTC';
        CONTINUE WHEN to_regclass(leaf) IS NOT NULL;
        -- Two must not make the same day, and no job of it may come into the default leaf from here on.
        LOCK TABLE ONLY th_jobs_finished IN ACCESS EXCLUSIVE MODE;
        CONTINUE WHEN to_regclass(leaf) IS NOT NULL OR EXISTS (
            SELECT FROM th_jobs_finished_default WHERE completed_at >= starts AND completed_at < ends
        );
        EXECUTE format('CREATE TABLE %I PARTITION OF th_jobs_finished FOR VALUES FROM (%L) TO (%L)', leaf, starts, ends);
        EXECUTE format('CREATE UNIQUE INDEX %I ON %I (id)', leaf || '_id', leaf);
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;

SELECT th_make_days((now() AT TIME ZONE 'UTC')::date, 8);

CREATE FUNCTION th_refuse_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'th_jobs: the transition table does not know % to %', OLD.status, NEW.status
        USING ERRCODE = 'check_violation';
END
$$;

-- No statement, ours or another's, makes a move that the transition table does not know.
-- A move between leaves fires INSERT triggers too, so it is the UPDATE that is guarded; and
-- what is PROCESSING may go anywhere, so its leaf is spared: a trigger costs a lock on each
-- row, whatever its condition says.
CREATE TRIGGER th_jobs_transition BEFORE UPDATE ON th_jobs_waiting
    FOR EACH ROW
    WHEN (NEW.status <> OLD.status AND NEW.status NOT IN ('ENQUEUED', 'PROCESSING', 'DEAD', 'CANCELED'))
    EXECUTE FUNCTION th_refuse_transition();

CREATE TRIGGER th_jobs_transition BEFORE UPDATE ON th_jobs_dead
    FOR EACH ROW
    WHEN (NEW.status NOT IN ('DEAD', 'PENDING'))
    EXECUTE FUNCTION th_refuse_transition();

CREATE TRIGGER th_jobs_transition BEFORE UPDATE ON th_jobs_finished
    FOR EACH ROW
    WHEN (NEW.status <> OLD.status AND NOT (OLD.status = 'CANCELED' AND NEW.status = 'PENDING'))
    EXECUTE FUNCTION th_refuse_transition();

-- The key comes first, so that its holders are found whatever their queue.
CREATE TABLE th_keys (
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    job_id uuid NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (key, queue)
);

CREATE INDEX th_keys_job ON th_keys (job_id);

CREATE TABLE th_attempts (
    job_id uuid NOT NULL,
    token uuid NOT NULL,
    life integer NOT NULL,
    attempt integer NOT NULL,
    worker_id text,
    started_at timestamptz,
    ended_at timestamptz NOT NULL,
    event text NOT NULL,
    status text COLLATE "C" NOT NULL,
    outcome text NOT NULL,
    error_type text,
    message text,
    traceback text,
    fingerprint text,
    PRIMARY KEY (job_id, token)
);

CREATE TABLE th_outbox (
    job_id uuid NOT NULL,
    life integer NOT NULL,
    type text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    worker_id text,
    attempt_count integer NOT NULL,
    max_attempts integer NOT NULL,
    error text NOT NULL,
    dead_at timestamptz NOT NULL,
    next_at timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    last_error text,
    published_at timestamptz,
    given_up_at timestamptz,
    PRIMARY KEY (job_id, life)
);

CREATE INDEX th_outbox_pending ON th_outbox (dead_at, job_id, life)
    WHERE published_at IS NULL AND given_up_at IS NULL;

-- Who died, came back or was removed since the last roll-up, and of what: rows are only added, as to th_tallies.
CREATE TABLE th_dead_tallies (
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    count integer NOT NULL
);

-- How many dead letters died of the same, as of the last roll-up.
CREATE TABLE th_dead_groups (
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (queue, type, fingerprint)
);

CREATE FUNCTION th_announce_death() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO th_outbox (job_id, life, type, queue, worker_id, attempt_count, max_attempts, error, dead_at, next_at)
    VALUES (NEW.id, NEW.life, NEW.type, NEW.queue, NEW.worker_id, NEW.attempt_count, NEW.max_attempts,
        coalesce(NEW.last_error, NEW.dead_reason), NEW.dead_at, NEW.dead_at);
    INSERT INTO th_dead_tallies (queue, type, fingerprint, count)
    VALUES (NEW.queue, NEW.type, coalesce(NEW.fingerprint, ''), 1);
    RETURN NULL;
END
$$;

CREATE FUNCTION th_take_back_death() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO th_dead_tallies (queue, type, fingerprint, count)
    VALUES (OLD.queue, OLD.type, coalesce(OLD.fingerprint, ''), -1);
    RETURN NULL;
END
$$;

-- Every death has its event and is counted, by whatever statement the job died: a job dies by entering
-- this leaf. It leaves it by a requeue, which is a DELETE here, or for good.
CREATE TRIGGER th_jobs_death AFTER INSERT ON th_jobs_dead
    FOR EACH ROW EXECUTE FUNCTION th_announce_death();
CREATE TRIGGER th_jobs_dead_departure AFTER DELETE ON th_jobs_dead
    FOR EACH ROW EXECUTE FUNCTION th_take_back_death();

CREATE TABLE th_queues (
    name text COLLATE "C" PRIMARY KEY,
    paused_at timestamptz NOT NULL,
    paused_by text NOT NULL
);

CREATE TABLE th_duties (
    name text COLLATE "C" PRIMARY KEY,
    next_at timestamptz NOT NULL
);

-- At most one row: the last jump ahead of the clock.
CREATE TABLE th_clock (
    id integer PRIMARY KEY CHECK (id = 1),
    jumped_from timestamptz NOT NULL,
    jumped_to timestamptz NOT NULL,
    hold_until timestamptz NOT NULL
);

CREATE TABLE th_workers (
    id text COLLATE "C" PRIMARY KEY,
    host text NOT NULL,
    pid integer NOT NULL,
    queues text[] NOT NULL,
    types text[] NOT NULL,
    concurrency integer NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL
);

CREATE TABLE th_schedules (
    name text COLLATE "C" PRIMARY KEY,
    cron text NOT NULL,
    timezone text NOT NULL,
    type text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    payload bytea NOT NULL,
    options jsonb NOT NULL DEFAULT '{}',
    next_at timestamptz,
    fired_at timestamptz,
    paused_at timestamptz,
    last_job_id uuid
);

CREATE TABLE th_api_keys (
    id text COLLATE "C" PRIMARY KEY,
    name text NOT NULL,
    digest bytea NOT NULL,
    scopes text[] NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz
);

CREATE TABLE th_audit (
    id uuid PRIMARY KEY,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    detail jsonb NOT NULL
);

CREATE INDEX th_audit_at ON th_audit (at, id);

-- Who ended, came back or was removed since the last roll-up: rows are only added, in the
-- statement that moved the jobs, so that no two of them fight over a counter.
CREATE TABLE th_tallies (
    minute timestamptz NOT NULL,
    queue text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    ended integer NOT NULL,
    kept integer NOT NULL
);

-- Counts for people, as of the last roll-up: nobody counts over history.
CREATE TABLE th_counts (
    queue text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (queue, status)
);

CREATE TABLE th_finished (
    minute timestamptz NOT NULL,
    queue text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (minute, queue, status)
);

-- Drops a leaf of finished jobs with all that is in it, and says how many jobs that were; NULL,
-- and nothing is dropped, if something hangs on one of them. Nobody but a person who requeues
-- changes jobs of a past day, so that they are counted before anybody is locked out.
CREATE FUNCTION th_drop_day(leaf text, at timestamptz) RETURNS bigint
    LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '250ms' AS $$
DECLARE
    is_entangled boolean;
    jobs bigint;
BEGIN
    EXECUTE format(
        'SELECT EXISTS (
            SELECT FROM %I AS job
             WHERE job.idempotency_key IS NOT NULL
                OR EXISTS (SELECT FROM th_attempts WHERE job_id = job.id)
                OR EXISTS (SELECT FROM th_outbox WHERE job_id = job.id)
        )', leaf) INTO is_entangled;
    IF is_entangled THEN
        RETURN NULL;
    END IF;
    EXECUTE format(
        'WITH counted AS (
            INSERT INTO th_tallies (minute, queue, status, ended, kept)
            SELECT $1, queue, status, 0, -count(*) FROM %I GROUP BY queue, status
            RETURNING kept
        )
        SELECT coalesce(-sum(kept), 0) FROM counted', leaf) INTO jobs USING at;
    LOCK TABLE ONLY th_jobs_finished IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('DROP TABLE %I', leaf);
    RETURN jobs;
END
$$;
