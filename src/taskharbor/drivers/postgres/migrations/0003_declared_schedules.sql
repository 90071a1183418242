-- When a live worker was last known to declare this schedule in its code. NULL: a person or a program has stored it.
ALTER TABLE th_schedules ADD COLUMN declared_at timestamptz;

-- The names of the schedules that the worker's code declares.
ALTER TABLE th_workers ADD COLUMN schedules text[] NOT NULL DEFAULT '{}';
