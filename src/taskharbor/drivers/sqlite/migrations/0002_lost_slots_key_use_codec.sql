-- Slots whose handler runs on past its timeout and cannot be stopped.
ALTER TABLE th_workers ADD COLUMN lost_slots INTEGER NOT NULL DEFAULT 0;

ALTER TABLE th_api_keys ADD COLUMN used_at INTEGER;

-- Facts about the whole store, one row each: the name of the codec that its payloads are written with, and when
-- a publisher of dead-letter events was last seen.
CREATE TABLE th_settings (
    name TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- An event that was ever taken shows that there is a publisher, even if its code is older than this table.
INSERT INTO th_settings (name, value)
SELECT 'publisher_seen_at', CAST(CAST(strftime('%s', 'now') AS INTEGER) * 1000000 AS TEXT)
 WHERE EXISTS (SELECT 1 FROM th_outbox WHERE attempts > 0);
