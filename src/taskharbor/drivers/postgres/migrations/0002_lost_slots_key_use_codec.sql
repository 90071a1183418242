-- Slots whose handler runs on past its timeout and cannot be stopped.
ALTER TABLE th_workers ADD COLUMN lost_slots integer NOT NULL DEFAULT 0;

ALTER TABLE th_api_keys ADD COLUMN used_at timestamptz;

-- Facts about the whole store, one row each: the name of the codec that its payloads are written with, and when
-- a publisher of dead-letter events was last seen.
CREATE TABLE th_settings (
    name text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);

-- An event that was ever taken shows that there is a publisher, even if its code is older than this table.
INSERT INTO th_settings (name, value)
SELECT 'publisher_seen_at', to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
 WHERE EXISTS (SELECT FROM th_outbox WHERE attempts > 0);

-- How far retention has come with a day of finished jobs. Jobs up to cleared_to were examined: first those of the
-- attached leaf, then once more those of the detached one.
CREATE TABLE th_pruning (
    leaf text COLLATE "C" PRIMARY KEY,
    cleared_to uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    is_detached boolean NOT NULL DEFAULT false
);

-- Takes a day out of th_jobs, and reports whether it did. Jobs whose event is still to be published move to the
-- default leaf; false, and nothing is changed, if those are too many to be moved under the lock. The lock is held
-- for a change of the catalog only: the leaf is emptied and dropped later, and no session waits for that.
CREATE FUNCTION th_detach_day(day text) RETURNS boolean
    LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '250ms' AS $$
DECLARE
    most CONSTANT integer := 1000;
    kept uuid[];
BEGIN
    EXECUTE format(
        'SELECT ARRAY(
            SELECT event.job_id
              FROM th_outbox AS event
             WHERE event.published_at IS NULL
               AND event.given_up_at IS NULL
               AND EXISTS (SELECT FROM %I AS job WHERE job.id = event.job_id)
             LIMIT $1
        )', day) INTO kept USING most + 1;
    IF cardinality(kept) > most THEN
        RETURN false;
    END IF;
    LOCK TABLE ONLY th_jobs_finished IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('ALTER TABLE th_jobs_finished DETACH PARTITION %I', day);
    EXECUTE format(
        'WITH kept AS (
            DELETE FROM %I WHERE id = ANY ($1) RETURNING *
        )
        INSERT INTO th_jobs_finished SELECT * FROM kept', day) USING kept;
    UPDATE th_pruning SET is_detached = true, cleared_to = DEFAULT WHERE leaf = day;
    RETURN true;
END
$$;
