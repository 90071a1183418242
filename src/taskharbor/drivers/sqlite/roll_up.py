"""The roll-up, and the counts of queues: sums of tallies, so that no call counts all waiting jobs (ADR 0029)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from taskharbor.core.statistics import FINE_FOR, MINUTE
from taskharbor.drivers.sqlite.rows import WAITING, span

if TYPE_CHECKING:
    from datetime import timedelta

    from taskharbor.drivers.sqlite.pool import SqlExecutor, SqlitePool

_MINUTE: Final = span(MINUTE)
TOTALS: Final[LiteralString] = """
    SELECT queue, sum(living) AS living, sum(failed) AS failed, sum(enqueued) AS enqueued, sum(running) AS running,
           sum(arrived) AS arrived, sum(ended) AS ended
      FROM (
           SELECT queue, living, failed, enqueued, 0 AS running, 0 AS arrived, 0 AS ended
             FROM th_living
            UNION ALL
           SELECT queue, iif(status = 'PENDING', count, 0), iif(status = 'FAILED', count, 0),
                  iif(status = 'ENQUEUED', count, 0), 0, iif(status = 'PENDING', count, 0), 0
             FROM th_waiting_tallies
            UNION ALL
           SELECT queue, -count, 0, 0, 0, 0, count
             FROM th_ended
            UNION ALL
           SELECT queue, 0, 0, 0, count(*), 0, 0
             FROM th_jobs INDEXED BY th_jobs_processing
            WHERE lease_expires_at IS NOT NULL
            GROUP BY queue
           )
     GROUP BY queue
"""
"""The jobs of each queue that have not ended, and what has happened since the last roll-up."""
COUNTS: Final[LiteralString] = f"""
    SELECT total.queue, status.value AS status,
           CASE status.value
               WHEN 'FAILED' THEN failed
               WHEN 'ENQUEUED' THEN enqueued
               WHEN 'PROCESSING' THEN running
               ELSE living - failed - enqueued - running
           END AS count
      FROM ({TOTALS}) AS total, json_each('["PENDING", "FAILED", "ENQUEUED", "PROCESSING"]') AS status
     UNION ALL
    SELECT queue, status, count
      FROM th_counts
     UNION ALL
    SELECT queue, status, count
      FROM th_ended
"""
LINES: Final[LiteralString] = f"""
        line (queue, priority, scheduled_for) AS (
            SELECT head.queue, head.priority, head.scheduled_for
              FROM th_jobs AS head
             WHERE head.id = (
                   SELECT id
                     FROM th_jobs INDEXED BY th_jobs_waiting
                    WHERE {WAITING}
                    ORDER BY queue, priority, scheduled_for
                    LIMIT 1
                   )
             UNION ALL
            SELECT head.queue, head.priority, head.scheduled_for
              FROM line
              JOIN th_jobs AS head
                ON head.id = coalesce(
                   (
                   SELECT id
                     FROM th_jobs INDEXED BY th_jobs_waiting
                    WHERE {WAITING}
                      AND queue = line.queue
                      AND priority > line.priority
                    ORDER BY priority, scheduled_for
                    LIMIT 1
                   ),
                   (
                   SELECT id
                     FROM th_jobs INDEXED BY th_jobs_waiting
                    WHERE {WAITING}
                      AND queue > line.queue
                    ORDER BY queue, priority, scheduled_for
                    LIMIT 1
                   )
                   )
        )"""
"""The first job of each queue and priority. Each step seeks the next of these lines, so the cost depends on their
number, not on that of the jobs."""
_OLDEST: Final[LiteralString] = f"""
    WITH RECURSIVE {LINES}
    SELECT queue, :now - min(scheduled_for)
      FROM line
     WHERE scheduled_for <= :now
     GROUP BY queue
"""
_SAVE_LIVING: Final[LiteralString] = """
    INSERT INTO th_living (queue, living, failed, enqueued)
    VALUES (?, ?, ?, ?)
        ON CONFLICT DO UPDATE
       SET living = excluded.living,
           failed = excluded.failed,
           enqueued = excluded.enqueued
"""
_SAVE_DEPTH: Final[LiteralString] = """
    INSERT INTO th_depths (minute, queue, waiting, running, oldest_age)
    VALUES (?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE
       SET waiting = excluded.waiting,
           running = excluded.running,
           oldest_age = excluded.oldest_age
"""
_ROLL_UP: Final[tuple[LiteralString, ...]] = (
    """
    INSERT INTO th_statistic_tallies (metric, minute, queue, type, key, count)
    SELECT 'arrived', :minute, queue, '', '', count
      FROM th_waiting_tallies
     WHERE status = 'PENDING'
     UNION ALL
    SELECT 'ended', minute, queue, '', status, count
      FROM th_ended
    """,
    """
    INSERT INTO th_counts (queue, status, count)
    SELECT queue, status, sum(count)
      FROM th_ended
     GROUP BY queue, status
        ON CONFLICT DO UPDATE
       SET count = count + excluded.count
    """,
    """
    INSERT INTO th_finished (minute, queue, status, count)
    SELECT minute, queue, status, count
      FROM th_ended
     WHERE TRUE  -- without WHERE, SQLite parses the following ON as a join condition
        ON CONFLICT DO UPDATE
       SET count = count + excluded.count
    """,
    """
    DELETE FROM th_ended
    """,
    """
    DELETE FROM th_waiting_tallies
    """,
    """
    DELETE FROM th_living
     WHERE living = 0
    """,
    """
    DELETE FROM th_counts
     WHERE count = 0
    """,
    """
    DELETE FROM th_dead_groups
     WHERE count = 0
    """,
    """
    INSERT INTO th_statistics (metric, step, minute, queue, type, key, count)
    SELECT metric, step, minute / (step * 60000000) * (step * 60000000), queue, type, key, sum(count)
      FROM th_statistic_tallies
      JOIN (SELECT value AS step FROM json_each('[1, 15, 60]'))
     WHERE step > 1
        OR minute >= :fine
     GROUP BY 1, 2, 3, 4, 5, 6
        ON CONFLICT DO UPDATE
       SET count = count + excluded.count
    """,
    """
    DELETE FROM th_statistic_tallies
    """,
    """
    DELETE FROM th_statistics
     WHERE step IN (15, 60)
       AND minute < :since
    """,
    """
    DELETE FROM th_statistics
     WHERE step = 1
       AND minute < max(:fine, :since)
    """,
    """
    DELETE FROM th_depths
     WHERE minute < :since
    """,
    """
    DELETE FROM th_depths
     WHERE minute % 900000000 <> 0
       AND minute < :fine
    """,
    """
    DELETE FROM th_dead_hours
     WHERE hour < :since
    """,
    """
    DELETE FROM th_versions
     WHERE last_seen < :since
    """,
)
_DROP_MINUTES: Final[LiteralString] = """
    DELETE FROM th_finished
     WHERE minute < :since
    RETURNING minute
"""


def roll_up(connections: SqlitePool, *, keep: timedelta) -> int:
    """Move counts out of the tables that every job writes, so that they stay small."""
    with connections as (db, now):
        params = {
            "now": now,
            "minute": now // _MINUTE * _MINUTE,
            "since": now - span(keep),
            "fine": now - span(FINE_FOR),
        }
        _save_totals(db, params)
        for statement in _ROLL_UP:
            db.execute(statement, params)
        dropped = db.execute(_DROP_MINUTES, params).fetchall()
    return len(set(dropped))


def _save_totals(db: SqlExecutor, params: dict[str, int]) -> None:
    # Not a temporary table: that would change the schema, and all prepared statements would be made again.
    totals = db.execute(TOTALS).fetchall()
    ages = dict(db.execute(_OLDEST, params).fetchall())
    db.executemany(_SAVE_LIVING, [(queue, living, failed, sent) for queue, living, failed, sent, *_ in totals])
    # A queue that has no jobs, and had none since the last roll-up, needs no row.
    depths = [
        (params["minute"], queue, living - running, running, ages.get(queue))
        for queue, living, _, _, running, arrived, ended in totals
        if living or arrived or ended
    ]
    db.executemany(_SAVE_DEPTH, depths)
