"""Statistics by minute, dead letters by hour, and versions of the application (ADR 0029)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, LiteralString

from taskharbor.core.errors import SchemaOutOfDate
from taskharbor.core.statistics import (
    DEPTHS,
    MINUTE,
    SPANS,
    AppVersion,
    DeadHour,
    series_points,
)
from taskharbor.drivers.migrate import RUN_MIGRATIONS
from taskharbor.drivers.postgres.rows import NOW
from taskharbor.drivers.postgres.schema import OPERATORS_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from taskharbor.core.results import DeadLetterGroup
    from taskharbor.core.statistics import SeriesPoint, SeriesQuery, StatisticTally
    from taskharbor.drivers.postgres.pool import PostgresPool

VERSION_NOTED: Final = timedelta(minutes=1)
"""How often the time of a version is renewed at most, however many workers have it."""

_ADD_TALLIES: Final[LiteralString] = """
    INSERT INTO th_statistic_tallies (minute, metric, queue, type, key, count)
    SELECT *
      FROM unnest(
           %(minutes)s::timestamptz[], %(metrics)s::text[], %(queues)s::text[], %(types)s::text[], %(keys)s::text[],
           %(counts)s::integer[]
           )
"""
_NOTE_VERSION: Final[LiteralString] = f"""
    INSERT INTO th_versions AS known (version, first_seen, last_seen)
    VALUES (%(version)s, {NOW}, {NOW})
        ON CONFLICT (version) DO UPDATE
       SET last_seen = excluded.last_seen
     WHERE known.last_seen < excluded.last_seen - %(noted)s
"""


def record(connections: PostgresPool, tallies: Sequence[StatisticTally], *, version: str | None) -> None:
    if connections.schema_version < OPERATORS_VERSION:
        return
    if tallies:
        connections.fetch(
            _ADD_TALLIES,
            minutes=[each.minute for each in tallies],
            metrics=[each.metric.value for each in tallies],
            queues=[each.queue for each in tallies],
            types=[each.type for each in tallies],
            keys=[each.key for each in tallies],
            counts=[each.count for each in tallies],
        )
    if version is not None:
        connections.fetch(_NOTE_VERSION, version=version, noted=VERSION_NOTED)


_COUNTS: Final[LiteralString] = """
    SELECT minute,
           CASE %(by)s::text WHEN 'queue' THEN queue WHEN 'type' THEN type WHEN 'status' THEN key ELSE '' END,
           CASE WHEN %(is_span)s THEN key ELSE '' END,
           sum(count)::bigint,
           count(*)
      FROM (
        SELECT minute, queue, type, key, count
          FROM th_statistics
         WHERE metric = %(metric)s
           AND step = %(step)s
           AND minute >= %(since)s
           AND minute < %(until)s
           AND (%(type)s::text IS NULL OR type = %(type)s)
         LIMIT %(rows)s
           ) AS stored
     GROUP BY 1, 2, 3
"""
_DEPTHS: Final[LiteralString] = """
    SELECT date_bin(%(step)s * interval '1 minute', minute, '1970-01-01 00:00:00+00'), name, '', max(value),
           sum(size)::bigint
      FROM (
        SELECT minute,
               CASE %(by)s::text WHEN 'queue' THEN queue ELSE '' END AS name,
               (CASE %(metric)s::text
                   WHEN 'waiting' THEN sum(waiting)
                   WHEN 'running' THEN sum(running)
                   ELSE extract(epoch FROM max(oldest_age))
               END)::double precision AS value,
               count(*) AS size
          FROM (
            SELECT minute, queue, waiting, running, oldest_age
              FROM th_depths
             WHERE minute >= %(since)s
               AND minute < %(until)s
             LIMIT %(rows)s
               ) AS stored
         GROUP BY 1, 2
           ) AS minutes
     WHERE value IS NOT NULL
     GROUP BY 1, 2
"""
_UNTIL: Final[LiteralString] = "minute < %(until)s"
_OF_QUEUE: Final[LiteralString] = f"{_UNTIL} AND queue = %(queue)s"
_COUNTS_OF_QUEUE: Final[LiteralString] = _COUNTS.replace(_UNTIL, _OF_QUEUE)
_DEPTHS_OF_QUEUE: Final[LiteralString] = _DEPTHS.replace(_UNTIL, _OF_QUEUE)


def series(connections: PostgresPool, query: SeriesQuery) -> list[SeriesPoint]:
    query.check()
    _check_schema(connections)
    parameters: dict[str, Any] = {
        "metric": query.metric.value,
        "since": query.start,
        "until": query.until,
        "by": query.by.value,
        "step": query.step // MINUTE,
        "rows": query.max_rows + 1,
    }
    if query.queue is not None:
        parameters["queue"] = query.queue
    if query.metric in DEPTHS:
        rows = connections.fetch(_DEPTHS if query.queue is None else _DEPTHS_OF_QUEUE, **parameters)
    else:
        parameters |= {"type": query.type, "is_span": query.metric in SPANS}
        rows = connections.fetch(_COUNTS if query.queue is None else _COUNTS_OF_QUEUE, **parameters)
    return series_points(query, rows)


_DEAD_HOURS: Final[LiteralString] = """
    SELECT dead.queue, dead.type, dead.fingerprint, dead.hour, dead.count
      FROM unnest(%(queues)s::text[], %(types)s::text[], %(fingerprints)s::text[]) AS asked (queue, type, fingerprint)
     CROSS JOIN LATERAL (
           SELECT *
             FROM th_dead_hours
            WHERE queue = asked.queue
              AND type = asked.type
              AND fingerprint = asked.fingerprint
              AND hour >= %(since)s
           OFFSET 0
           ) AS dead
     ORDER BY dead.hour
"""


def dead_hours(connections: PostgresPool, groups: Sequence[DeadLetterGroup], *, since: datetime) -> list[DeadHour]:
    if connections.schema_version < OPERATORS_VERSION:
        return []
    rows = connections.fetch(
        _DEAD_HOURS,
        queues=[each.queue for each in groups],
        types=[each.type for each in groups],
        fingerprints=[each.fingerprint for each in groups],
        since=since,
    )
    return [DeadHour(*row) for row in rows]


_VERSIONS: Final[LiteralString] = """
    SELECT version, first_seen, last_seen
      FROM th_versions
     ORDER BY first_seen DESC, version DESC
     LIMIT %(limit)s
"""


def versions(connections: PostgresPool, *, limit: int) -> list[AppVersion]:
    if connections.schema_version < OPERATORS_VERSION:
        return []
    return [AppVersion(*row) for row in connections.fetch(_VERSIONS, limit=limit)]


def _check_schema(connections: PostgresPool) -> None:
    found = connections.schema_version
    if found < OPERATORS_VERSION:
        raise SchemaOutOfDate(str(found), str(OPERATORS_VERSION), RUN_MIGRATIONS)
