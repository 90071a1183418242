-- Slots whose handler runs on past its timeout and cannot be stopped.
ALTER TABLE th_workers ADD COLUMN lost_slots integer NOT NULL DEFAULT 0;

ALTER TABLE th_api_keys ADD COLUMN used_at timestamptz;

-- Facts about the whole store, one row each: the name of the codec that its payloads are written with.
CREATE TABLE th_settings (
    name text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);
