"""Statistics by minute, dead letters by hour, and versions of the application (ADR 0029)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, LiteralString

from taskharbor.core.statistics import (
    DEPTHS,
    MINUTE,
    SPANS,
    AppVersion,
    DeadHour,
    series_points,
)
from taskharbor.drivers.sqlite.rows import micros, moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from taskharbor.core.results import DeadLetterGroup
    from taskharbor.core.statistics import SeriesPoint, SeriesQuery, StatisticTally
    from taskharbor.drivers.sqlite.pool import SqlExecutor, SqlitePool


_COUNT_ARRIVED: Final[LiteralString] = """
    INSERT INTO th_waiting_tallies
    VALUES (?, 'PENDING', ?)
        ON CONFLICT DO UPDATE
       SET count = count + excluded.count
"""


def count_arrived(db: SqlExecutor, queues: Iterable[tuple[str, int]]) -> None:
    """Count new jobs by queue."""
    db.executemany(_COUNT_ARRIVED, queues)


_ADD_TALLIES: Final[LiteralString] = """
    INSERT INTO th_statistic_tallies (minute, metric, queue, type, key, count)
    VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE
       SET count = count + excluded.count
"""
_NOTE_VERSION: Final[LiteralString] = """
    INSERT INTO th_versions (version, first_seen, last_seen)
    VALUES (?, ?, ?)
        ON CONFLICT DO UPDATE
       SET last_seen = excluded.last_seen
"""


def record(connections: SqlitePool, tallies: Sequence[StatisticTally], *, version: str | None) -> None:
    rows = [(micros(each.minute), each.metric.value, each.queue, each.type, each.key, each.count) for each in tallies]
    with connections as (db, now):
        db.executemany(_ADD_TALLIES, rows)
        if version is not None:
            db.execute(_NOTE_VERSION, (version, now, now))


_COUNTS_BY_STEP: Final[LiteralString] = """
    SELECT minute,
           CASE :by WHEN 'queue' THEN queue WHEN 'type' THEN type WHEN 'status' THEN key ELSE '' END,
           iif(:is_span, key, ''),
           sum(count),
           count(*)
      FROM (
        SELECT minute, queue, type, key, count
          FROM th_statistics
         WHERE metric = :metric
           AND step = :step
           AND minute >= :since
           AND minute < :until
           AND (:type IS NULL OR type = :type)
         LIMIT :rows
           )
     GROUP BY 1, 2, 3
"""
_DEPTHS: Final[LiteralString] = """
    SELECT minute / (:step * 60000000) * (:step * 60000000), name, '', max(value), sum(size)
      FROM (
        SELECT minute,
               iif(:by = 'queue', queue, '') AS name,
               CASE :metric
                   WHEN 'waiting' THEN sum(waiting)
                   WHEN 'running' THEN sum(running)
                   ELSE max(oldest_age) / 1e6
               END AS value,
               count(*) AS size
          FROM (
            SELECT minute, queue, waiting, running, oldest_age
              FROM th_depths
             WHERE minute >= :since
               AND minute < :until
             LIMIT :rows
               )
         GROUP BY 1, 2
           )
     WHERE value IS NOT NULL
     GROUP BY 1, 2
"""
_UNTIL: Final[LiteralString] = "minute < :until"
_OF_QUEUE: Final[LiteralString] = f"{_UNTIL} AND queue = :queue"


def series(connections: SqlitePool, query: SeriesQuery) -> list[SeriesPoint]:
    query.check()
    params: dict[str, Any] = {
        "metric": query.metric.value,
        "since": micros(query.start),
        "until": micros(query.until),
        "by": query.by.value,
        "step": query.step // MINUTE,
        "queue": query.queue,
        "type": query.type,
        "is_span": query.metric in SPANS,
        "rows": query.max_rows + 1,
    }
    statement = _DEPTHS if query.metric in DEPTHS else _COUNTS_BY_STEP
    if query.queue is not None:
        statement = statement.replace(_UNTIL, _OF_QUEUE)
    with connections.read() as db:
        rows = db.execute(statement, params).fetchall()
    return series_points(query, ((moment(at), *rest) for at, *rest in rows))


_DEAD_HOURS: Final[LiteralString] = """
    SELECT hour, count
      FROM th_dead_hours
     WHERE queue = ?
       AND type = ?
       AND fingerprint = ?
       AND hour >= ?
"""


def dead_hours(connections: SqlitePool, groups: Sequence[DeadLetterGroup], *, since: datetime) -> list[DeadHour]:
    start = micros(since)
    with connections.read() as db:
        found = [
            DeadHour(each.queue, each.type, each.fingerprint, moment(hour), count)
            for each in groups
            for hour, count in db.execute(_DEAD_HOURS, (each.queue, each.type, each.fingerprint, start))
        ]
    return sorted(found, key=lambda each: each.hour)


_VERSIONS: Final[LiteralString] = """
    SELECT version, first_seen, last_seen
      FROM th_versions
     ORDER BY first_seen DESC, version DESC
     LIMIT ?
"""


def versions(connections: SqlitePool, *, limit: int) -> list[AppVersion]:
    with connections.read() as db:
        return [AppVersion(name, moment(first), moment(last)) for name, first, last in db.execute(_VERSIONS, (limit,))]
