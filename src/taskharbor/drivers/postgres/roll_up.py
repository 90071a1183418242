"""The roll-up: sums up tallies, so that nothing is counted over all waiting or finished jobs (ADR 0029).

Statements that change jobs, and workers, add rows to tables of tallies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from psycopg.errors import LockNotAvailable

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.statistics import FINE_FOR
from taskharbor.drivers.postgres.partitions import STATEMENT_TIMEOUT, transact
from taskharbor.drivers.postgres.rows import NOW
from taskharbor.drivers.postgres.schema import OPERATORS_VERSION

if TYPE_CHECKING:
    from datetime import timedelta

    from taskharbor.drivers.postgres.pool import PostgresPool, Row, Steps

_TAKE_TALLIES: Final[LiteralString] = """taken AS (
        DELETE FROM th_tallies
        RETURNING minute, queue, status, ended, kept
    ),
    finished AS (
        INSERT INTO th_finished AS finished (minute, queue, status, count)
        SELECT minute, queue, status, sum(ended)
          FROM taken
         WHERE ended > 0
         GROUP BY minute, queue, status
         ORDER BY minute, queue, status
            ON CONFLICT (minute, queue, status) DO UPDATE
           SET count = finished.count + excluded.count
    )"""
LANES: Final[LiteralString] = """lane AS (
        (
        SELECT queue, priority, scheduled_for
          FROM th_jobs_waiting
         WHERE attempt_count < max_attempts
         ORDER BY queue, priority, scheduled_for
         LIMIT 1
        )
         UNION ALL
        SELECT head.*
          FROM lane
         CROSS JOIN LATERAL (
               SELECT queue, priority, scheduled_for
                 FROM th_jobs_waiting
                WHERE (queue, priority) > (lane.queue, lane.priority)
                  AND attempt_count < max_attempts
                ORDER BY queue, priority, scheduled_for
                LIMIT 1
               ) AS head
    )"""
"""The first job of each queue and priority. Each step jumps to the next of these lanes, so the cost depends on the
number of lanes, not of jobs."""
_LOCK: Final[LiteralString] = "LOCK TABLE th_living IN SHARE ROW EXCLUSIVE MODE"
_ROLL_UP: Final[LiteralString] = f"""
    WITH RECURSIVE
    {_TAKE_TALLIES},
    moved AS (
        DELETE FROM th_waiting_tallies
        RETURNING queue, status, count
    ),
    total AS (
        SELECT queue, sum(living) AS living, sum(failed) AS failed, sum(enqueued) AS enqueued,
               sum(running) AS running, sum(arrived) AS arrived, sum(ended) AS ended
          FROM (
               SELECT queue, living, failed, enqueued, 0 AS running, 0 AS arrived, 0 AS ended
                 FROM th_living
                UNION ALL
               SELECT queue,
                      CASE status WHEN 'PENDING' THEN count ELSE 0 END,
                      CASE status WHEN 'FAILED' THEN count ELSE 0 END,
                      CASE status WHEN 'ENQUEUED' THEN count ELSE 0 END,
                      0,
                      CASE status WHEN 'PENDING' THEN count ELSE 0 END,
                      0
                 FROM moved
                UNION ALL
               SELECT queue, -ended, 0, 0, 0, 0, ended
                 FROM taken
                UNION ALL
               SELECT queue, 0, 0, 0, count(*), 0, 0
                 FROM th_jobs_processing
                GROUP BY queue
               ) AS part
         GROUP BY queue
    ),
    living AS (
        INSERT INTO th_living AS known (queue, living, failed, enqueued)
        SELECT queue, living, failed, enqueued
          FROM total
         ORDER BY queue
            ON CONFLICT (queue) DO UPDATE
           SET living = excluded.living,
               failed = excluded.failed,
               enqueued = excluded.enqueued
         WHERE (known.living, known.failed, known.enqueued)
               <> (excluded.living, excluded.failed, excluded.enqueued)
    ),
    {LANES},
    due AS (
        SELECT queue, {NOW} - min(scheduled_for) AS age
          FROM lane
         WHERE scheduled_for <= {NOW}
         GROUP BY queue
    ),
    depths AS (
        -- A queue that has no jobs, and had none since the last roll-up, needs no row.
        INSERT INTO th_depths (minute, queue, waiting, running, oldest_age)
        SELECT date_bin('1 minute', {NOW}, 'epoch'), queue, living - running, running, age
          FROM total
          LEFT JOIN due USING (queue)
         WHERE living > 0
            OR arrived > 0
            OR ended > 0
         ORDER BY queue
            ON CONFLICT (minute, queue) DO UPDATE
           SET waiting = excluded.waiting,
               running = excluded.running,
               oldest_age = excluded.oldest_age
    ),
    statistics AS (
        INSERT INTO th_statistic_tallies (minute, metric, queue, type, key, count)
        SELECT minute, 'ended', queue, '', status, ended
          FROM taken
         WHERE ended > 0
         UNION ALL
        SELECT date_bin('1 minute', {NOW}, 'epoch'), 'arrived', queue, '', '', arrived
          FROM total
         WHERE arrived > 0
    ),
    counts AS (
        SELECT queue, unnest(ARRAY['PENDING', 'FAILED', 'ENQUEUED', 'PROCESSING']) AS status,
               unnest(ARRAY[living - failed - enqueued - running, failed, enqueued, running]) AS count
          FROM total
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
     WHERE excluded.status IN ('SUCCEEDED', 'DEAD', 'CANCELED') OR counted.count <> excluded.count
"""
# On schema version 3. Once it is migrated, tallies are left to processes that know th_living.
_TAKEN_3: Final[LiteralString] = """DELETE FROM th_tallies
         WHERE NOT EXISTS (SELECT FROM th_migrations WHERE number > 3)"""
_ROLL_UP_3: Final[LiteralString] = f"""
    WITH {_TAKE_TALLIES.replace("DELETE FROM th_tallies", _TAKEN_3)},
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
_ROLL_UP_DEAD: Final[LiteralString] = """
    WITH taken AS (
        DELETE FROM th_dead_tallies
        RETURNING queue, type, fingerprint, count, hour
    ),
    hours AS (
        INSERT INTO th_dead_hours AS dead (queue, type, fingerprint, hour, count)
        SELECT queue, type, fingerprint, hour, sum(count)
          FROM taken
         WHERE hour IS NOT NULL
         GROUP BY queue, type, fingerprint, hour
         ORDER BY queue, type, fingerprint, hour
            ON CONFLICT (queue, type, fingerprint, hour) DO UPDATE
           SET count = dead.count + excluded.count
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
_ROLL_UP_DEAD_3: Final[LiteralString] = (  # on schema version 3
    _ROLL_UP_DEAD[: _ROLL_UP_DEAD.index("    hours AS")] + _ROLL_UP_DEAD[_ROLL_UP_DEAD.index("    gone AS") :]
).replace(", count, hour", ", count")
_ROLL_UP_STATISTICS: Final[LiteralString] = f"""
    WITH taken AS (
        DELETE FROM th_statistic_tallies
        RETURNING metric, minute, queue, type, key, count
    )
    INSERT INTO th_statistics AS known (metric, step, minute, queue, type, key, count)
    SELECT metric, step, date_bin(step * interval '1 minute', minute, 'epoch') AS at, queue, type, key, sum(count)
      FROM taken
     CROSS JOIN unnest(ARRAY[1, 15, 60]) AS step
     WHERE step > 1
        OR minute >= {NOW} - %(fine_for)s
     GROUP BY metric, step, at, queue, type, key
     ORDER BY metric, step, at, queue, type, key
        ON CONFLICT (metric, step, minute, queue, type, key) DO UPDATE
       SET count = known.count + excluded.count
"""
_DROP_MINUTES: Final[LiteralString] = f"""
    DELETE FROM th_finished
     WHERE minute < {NOW} - %(keep)s
    RETURNING minute
"""
_DROP_STATISTICS: Final[LiteralString] = f"""
    WITH counts AS (
        DELETE FROM th_statistics
         WHERE step IN (15, 60)
           AND minute < {NOW} - %(keep)s
    ),
    fine AS (
        DELETE FROM th_statistics
         WHERE step = 1
           AND minute < {NOW} - least(%(fine_for)s::interval, %(keep)s::interval)
    ),
    depths AS (
        DELETE FROM th_depths
         WHERE minute < {NOW} - %(keep)s
    ),
    fine_depths AS (
        DELETE FROM th_depths
         WHERE minute < {NOW} - %(fine_for)s
           AND minute >= {NOW} - %(keep)s
           AND minute <> date_bin('15 minutes', minute, '1970-01-01 00:00:00+00')
    ),
    versions AS (
        DELETE FROM th_versions
         WHERE last_seen < {NOW} - %(keep)s
    )
    DELETE FROM th_dead_hours
     WHERE hour < {NOW} - %(keep)s
"""


def roll_up(connections: PostgresPool, *, keep: timedelta) -> int:
    """Update all counts and statistics, and return the number of minutes that were removed."""
    if connections.schema_version < OPERATORS_VERSION:
        connections.check_schema_again()  # it may have been migrated since
    if connections.schema_version < OPERATORS_VERSION:
        connections.fetch(_ROLL_UP_3)
        connections.fetch(_ROLL_UP_DEAD_3)
        return len(set(connections.fetch(_DROP_MINUTES, keep=keep)))

    def steps() -> Steps[list[Row]]:
        # One roll-up at a time: each computes the counts of waiting jobs from the last ones.
        yield _LOCK, {}
        yield _ROLL_UP, {}
        yield _ROLL_UP_STATISTICS, {"fine_for": FINE_FOR}
        yield _ROLL_UP_DEAD, {}
        yield _DROP_STATISTICS, {"keep": keep, "fine_for": FINE_FOR}
        return (yield _DROP_MINUTES, {"keep": keep})

    try:
        # Unhurried: while no janitor runs, each enqueue adds a tally. Millions of them take longer than the deadline.
        return len(set(transact(connections, steps, timeout=STATEMENT_TIMEOUT)))
    except StoreUnavailable as error:
        if not isinstance(error.__cause__, LockNotAvailable):  # another process rolls up; the next call continues
            raise
    return 0
