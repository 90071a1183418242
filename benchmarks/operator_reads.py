"""The statements of every read for operators, and of the roll-up, in PostgreSQL with ten million waiting jobs.

To add a read, add a line to `READS`. Each statement that it runs may take 50 ms and read 2,000 buffers; one that takes
more raises with its name. For fewer jobs: ``python -m benchmarks.operator_reads 1000000``.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Final

import psycopg

from taskharbor.audit_log import read_audit
from taskharbor.core.ids import JobId
from taskharbor.core.operations import OperationKind
from taskharbor.core.results import JobFilter
from taskharbor.core.states import Status
from taskharbor.core.statistics import HOUR, MINUTE, STEPS, GroupBy, Metric, SeriesQuery
from taskharbor.dashboard.attention import read_facts
from taskharbor.job_counts import count_jobs
from taskharbor.operations import OperationRequest, preview
from taskharbor.queues import read_queues
from taskharbor.schedule_runs import read_runs
from taskharbor.statistics import read_types
from taskharbor.timeline import read_timeline
from taskharbor.workers import held_by, lost_with
from tests.support.postgres import database
from tests.support.query_plans import leave_statistics_alone, watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.drivers.postgres import PostgresDriver
    from tests.support.query_plans import Ran, Watched

JOBS: Final = 10_000_000
MAX_MILLISECONDS: Final = 50
MAX_BUFFERS: Final = 2_000
ROUNDS: Final = 5
DAY: Final = timedelta(days=1)
PAGE: Final = 50


REQUEUE_ALL: Final = OperationRequest(kind=OperationKind.REQUEUE, by="ops", filter=JobFilter())
CANCEL_NONE: Final = OperationRequest(kind=OperationKind.CANCEL, by="ops", filter=JobFilter(type="unknown"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The store, its time, and one of its jobs in each of these states."""

    driver: PostgresDriver
    now: datetime
    waiting: JobId
    running: JobId
    finished: JobId
    dead: JobId

    def series(self, metric: Metric, by: GroupBy, step: timedelta, back: timedelta, queue: str | None = None) -> object:
        query = SeriesQuery(metric=metric, by=by, step=step, since=self.now - back, until=self.now, queue=queue)
        return self.driver.inspector.series(query)


@dataclass(frozen=True, slots=True)
class Measured:
    """A statement, and the medians of its time and of the buffers that it read."""

    statement: str
    milliseconds: float
    buffers: int


READS: Final[dict[str, Callable[[Filled], object]]] = {
    "roll up": lambda store: store.driver.maintenance.roll_up(keep=8 * DAY),
    "queues": lambda store: store.driver.inspector.queues(),
    "waiting, an hour by minute": lambda store: store.series(Metric.WAITING, GroupBy.NONE, MINUTE, HOUR),
    "waiting, 8 days by hour": lambda store: store.series(Metric.WAITING, GroupBy.NONE, HOUR, 8 * DAY),
    "oldest age, 6 hours by queue": lambda store: store.series(Metric.OLDEST_AGE, GroupBy.QUEUE, STEPS[1], 6 * HOUR),
    "arrived, a day by quarter": lambda store: store.series(Metric.ARRIVED, GroupBy.NONE, STEPS[1], DAY),
    "ended, 8 days by status": lambda store: store.series(Metric.ENDED, GroupBy.STATUS, HOUR, 8 * DAY),
    "attempts, a day by quarter": lambda store: store.series(Metric.ATTEMPTS, GroupBy.STATUS, STEPS[1], DAY),
    "attempts, a day by type": lambda store: store.series(Metric.ATTEMPTS, GroupBy.TYPE, HOUR, DAY),
    "wait, an hour by minute": lambda store: store.series(Metric.WAIT, GroupBy.NONE, MINUTE, HOUR),
    "run, 8 days of a queue": lambda store: store.series(Metric.RUN, GroupBy.NONE, HOUR, 8 * DAY, "queue7"),
    "versions": lambda store: store.driver.inspector.versions(limit=PAGE),
    "dead-letter groups": lambda store: store.driver.inspector.dead_letter_groups(limit=PAGE),
    "dead hours": lambda store: store.driver.inspector.dead_hours(
        store.driver.inspector.dead_letter_groups(limit=PAGE), since=store.now - 8 * DAY
    ),
    "workers": lambda store: store.driver.inspector.workers(),
    "jobs, newest": lambda store: store.driver.inspector.find(JobFilter(), limit=PAGE),
    "jobs, no match": lambda store: store.driver.inspector.find(JobFilter(type="unknown"), limit=PAGE),
    "jobs, dead": lambda store: store.driver.inspector.find(
        JobFilter(statuses=frozenset({Status.DEAD}), queue="queue7"), limit=PAGE
    ),
    "job": lambda store: store.driver.inspector.get([store.waiting, store.running, store.finished, store.dead]),
    "attempts of a job": lambda store: store.driver.inspector.attempts([store.dead]),
    "preview of an operation": lambda store: preview(store.driver, REQUEUE_ALL),
    "preview of an operation, no match": lambda store: preview(store.driver, CANCEL_NONE),
    "operations": lambda store: store.driver.operations.recent(limit=PAGE),
    "unfinished operations": lambda store: store.driver.operations.unfinished(limit=PAGE),
    "audit log": lambda store: store.driver.inspector.audit(limit=PAGE),
    "audit log of an actor": lambda store: store.driver.inspector.audit(limit=PAGE, actor="ann"),
    "audit log of an action": lambda store: store.driver.inspector.audit(limit=PAGE, action="cancel"),
    "audit log, three conditions, no match": lambda store: read_audit(
        store.driver.inspector, limit=PAGE, actor="ann", action="cancel", target="unknown"
    ),
    "queues with workers and rates": lambda store: read_queues(store.driver.inspector),
    "next jobs of a queue": lambda store: store.driver.inspector.next_up("queue7", limit=PAGE),
    "jobs, count": lambda store: count_jobs(store.driver.inspector, JobFilter(queue="queue7"), cap=10_000),
    "jobs, of a worker": lambda store: store.driver.inspector.find(JobFilter(worker="worker7"), limit=PAGE),
    "jobs, of a schedule": lambda store: store.driver.inspector.find(JobFilter(schedule="nightly"), limit=PAGE),
    "timeline of a job": lambda store: read_timeline(store.driver.inspector, store.dead),
    "workers that are gone": lambda store: store.driver.inspector.past_workers(),
    "jobs held by a worker": lambda store: held_by(store.driver.inspector, "worker7"),
    "jobs lost with a worker": lambda store: lost_with(store.driver.inspector, "worker7"),
    "types": lambda store: read_types(store.driver.inspector),
    "runs of schedules": lambda store: read_runs(store.driver.inspector, ["s1", "s2", "s3"], limit=30),
    "schedules": lambda store: store.driver.inspector.schedules(),
    "keys": lambda store: store.driver.inspector.keys(),
    "what needs attention": lambda store: read_facts(store.driver.inspector),
}


def figures(jobs: int = JOBS) -> dict[str, object]:
    with database() as url:
        leave_statistics_alone(url)
        started = time.monotonic()
        fill(url, jobs)
        seconds = time.monotonic() - started
        with watched(url) as watching:
            found = _found(watching.driver, url)
            reads = {name: _measured(watching, name, partial(read, found)) for name, read in READS.items()}
    over = [
        f"{name}: {each.milliseconds} ms, {each.buffers} buffers, in: {each.statement}"
        for name, statements in reads.items()
        for each in statements
        if each.milliseconds > MAX_MILLISECONDS or each.buffers > MAX_BUFFERS
    ]
    if over:
        raise AssertionError("\n".join(over))
    return {
        "jobs": {"waiting": jobs, "finished": jobs // 10, "dead": jobs // 10},
        "filled in s": round(seconds),
        "statements of each read": {name: [asdict(each) for each in ran] for name, ran in reads.items()},
    }


def _measured(watching: Watched, name: str, call: Callable[[], object]) -> list[Measured]:
    """Return time and buffers of each statement of *call*, the median of some rounds."""
    rounds: list[list[Ran]] = []
    for _ in range(ROUNDS):
        watching.ran.clear()
        watching.run(name, call)
        rounds.append([*watching.ran])
    return [
        Measured(
            statement=" ".join(ran[0].query.split())[:80],
            milliseconds=round(median(each.milliseconds for each in ran), 2),
            buffers=int(median(each.buffers for each in ran)),
        )
        for ran in zip(*rounds, strict=False)
    ]


def _found(driver: PostgresDriver, url: str) -> Filled:
    with psycopg.connect(url) as db:

        def some(leaf: str) -> JobId:
            [(job_id,)] = db.execute(f"SELECT id FROM {leaf} ORDER BY id OFFSET 100 LIMIT 1".encode()).fetchall()
            return JobId(job_id)

        return Filled(
            driver=driver,
            now=datetime.now(UTC),
            waiting=some("th_jobs_waiting"),
            running=some("th_jobs_processing"),
            finished=some("th_jobs_finished"),
            dead=some("th_jobs_dead"),
        )


def fill(url: str, jobs: int) -> None:
    """Insert jobs into each partition, with attempts, and eight days of statistics. Triggers and indexes come later."""
    today = f"th_jobs_finished_{datetime.now(UTC):%Y%m%d}"
    with psycopg.connect(url, autocommit=True) as db:
        # No trigger of ours may count or announce these jobs one by one.
        db.execute("SET session_replication_role = replica")
        db.execute("SET synchronous_commit = off")
        db.execute("SET maintenance_work_mem = '256MB'")
        db.execute(_UUID)
        for leaf, status, count, columns, values in (
            ("th_jobs_waiting", "PENDING", jobs, "", ""),
            ("th_jobs_processing", "PROCESSING", 2_000, *_LEASED),
            (today, "SUCCEEDED", jobs // 10, *_ENDED),
            ("th_jobs_dead", "DEAD", jobs // 10, *_DEAD),
        ):
            indexes = db.execute(_INDEXES, [leaf]).fetchall()
            for name, _ in indexes:
                db.execute(f"DROP INDEX {name}".encode())
            has_uuidv7 = db.info.server_version >= _FIRST_WITH_UUIDV7
            id_at = "uuidv7(-n * interval '50 ms')" if has_uuidv7 else "pg_temp.id_at(now() - n * interval '50 ms')"
            insert = _JOBS.format(leaf=leaf, columns=columns, values=values, id_at=id_at)
            db.execute(insert.encode(), {"status": status, "count": count})
            for _, definition in indexes:
                db.execute(definition.encode())
        for statement in (
            _ATTEMPTS,
            _LOST,
            _LIVING,
            _COUNTS,
            _GROUPS,
            _STATISTICS,
            _DEPTHS,
            _FINISHED,
            _HOURS,
            _OTHERS,
        ):
            db.execute(statement.encode())
        db.execute("VACUUM ANALYZE")


_FIRST_WITH_UUIDV7: Final = 18_00_00
# For older servers.
_UUID: Final = """
    CREATE FUNCTION pg_temp.id_at(at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE AS $$
        SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
            || '7' || substr(md5(random()::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15))::uuid
    $$
"""
_INDEXES: Final = """
    SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid)
      FROM pg_index
     WHERE indrelid = %s::regclass
"""
_LEASED: Final = (
    ", lease_token, lease_expires_at, worker_id, processing_started_at",
    ", gen_random_uuid(), now() + interval '1 hour', 'worker' || n %% 20, now()",
)
_ENDED: Final = (", completed_at", ", now()")
_DEAD: Final = (
    ", completed_at, dead_at, dead_reason, fingerprint",
    ", now(), now() - n * interval '50 ms', 'exhausted', md5((n %% 40)::text)",
)
_JOBS: Final = """
    INSERT INTO {leaf} (id, type, queue, priority, status, scheduled_for, created_at, attempt_count, max_attempts,
                        payload{columns})
    SELECT {id_at}, 'type' || n %% 30, 'queue' || n %% 10, n %% 3, %(status)s,
           now() - n * interval '50 ms', now() - n * interval '50 ms', 1, 3, '{{"a": 1}}'{values}
      FROM generate_series(1, %(count)s) AS n
"""
_ATTEMPTS: Final = """
    INSERT INTO th_attempts (job_id, token, life, attempt, ended_at, event, status, outcome)
    SELECT id, gen_random_uuid(), 1, 1, now(), 'retry', 'FAILED', 'FAILED'
      FROM th_jobs_dead
"""
_LOST: Final = """
    INSERT INTO th_attempts (job_id, token, life, attempt, worker_id, started_at, ended_at, event, status, outcome)
    SELECT id, gen_random_uuid(), 1, 1, 'worker7', now(), now(), 'expire', 'FAILED', 'LOST'
      FROM th_jobs_dead
     LIMIT 10000
"""
_LIVING: Final = """
    INSERT INTO th_living (queue, living, failed, enqueued)
    SELECT queue, count(*), 0, 0
      FROM th_jobs
     WHERE status IN ('PENDING', 'PROCESSING')
     GROUP BY queue
"""
_COUNTS: Final = "INSERT INTO th_counts SELECT queue, status, count(*) FROM th_jobs GROUP BY queue, status"
_GROUPS: Final = """
    INSERT INTO th_dead_groups
    SELECT queue, type, fingerprint, count(*)
      FROM th_jobs_dead
     GROUP BY queue, type, fingerprint
"""
_STEPS: Final = """(
           SELECT 1 AS step, date_bin('1 minute', now(), 'epoch') - n * interval '1 minute' AS minute
             FROM generate_series(0, 359) AS n
            UNION ALL
           SELECT 15, date_bin('15 minutes', now(), 'epoch') - n * interval '15 minutes'
             FROM generate_series(0, 767) AS n
            UNION ALL
           SELECT 60, date_bin('1 hour', now(), 'epoch') - n * interval '1 hour'
             FROM generate_series(0, 191) AS n
           ) AS steps"""
_STATISTICS: Final = f"""
    INSERT INTO th_statistics (metric, step, minute, queue, type, key, count)
    SELECT metric, step, minute, 'queue' || q, 'type' || q + 10 * t, key, 7
      FROM {_STEPS}, generate_series(0, 9) AS q, generate_series(0, 2) AS t,
           (
           SELECT metric, lpad(bucket::text, 2, '0')
             FROM (VALUES ('wait'), ('run')) AS kind (metric), generate_series(3, 6) AS bucket
            UNION ALL
           VALUES ('attempts', 'SUCCEEDED'), ('attempts', 'FAILED'), ('attempts', 'LOST')
           ) AS measured (metric, key)
     UNION ALL
    SELECT metric, step, minute, 'queue' || q, '', key, 5
      FROM {_STEPS}, generate_series(0, 9) AS q,
           (VALUES ('arrived', ''), ('ended', 'SUCCEEDED'), ('ended', 'DEAD')) AS counted (metric, key)
     ORDER BY minute  -- as they are added
"""
_DEPTHS: Final = f"""
    INSERT INTO th_depths (minute, queue, waiting, running, oldest_age)
    SELECT DISTINCT minute, 'queue' || q, 1000, 10, interval '3 s'
      FROM {_STEPS}, generate_series(0, 9) AS q
     ORDER BY minute
"""
_FINISHED: Final = """
    INSERT INTO th_finished (minute, queue, status, count)
    SELECT date_bin('1 minute', now(), 'epoch') - n * interval '1 minute', 'queue' || q, status, 9
      FROM generate_series(0, 11519) AS n, generate_series(0, 9) AS q, (VALUES ('SUCCEEDED'), ('DEAD')) AS s (status)
"""
_HOURS: Final = """
    INSERT INTO th_dead_hours (queue, type, fingerprint, hour, count)
    SELECT queue, type, fingerprint, date_bin('1 hour', now(), 'epoch') - n * interval '1 hour', 4
      FROM th_dead_groups, generate_series(0, 191) AS n
"""
_OTHERS: Final = """
    INSERT INTO th_workers (id, host, pid, queues, types, concurrency, started_at, seen_at)
    SELECT 'worker' || n, 'host', n, '{queue1}', '{type1}', 16, now(), now() FROM generate_series(1, 100) AS n;
    INSERT INTO th_versions SELECT 'v' || n, now(), now() FROM generate_series(1, 200) AS n;
    INSERT INTO th_audit (id, at, actor, action, target, detail)
    SELECT gen_random_uuid(), now() - n * interval '1 s', 'ann', 'cancel', n::text, '{}'
      FROM generate_series(1, 100000) AS n;
    INSERT INTO th_schedules (name, cron, timezone, type, queue, payload, options)
    SELECT 's' || n, '0 2 * * *', 'UTC', 'type1', 'queue1', '{}', '{}' FROM generate_series(1, 200) AS n;
    INSERT INTO th_schedule_runs (schedule, fire_time, job_id, at)
    SELECT 's' || n % 200 + 1, now(), (SELECT id FROM th_jobs_dead LIMIT 1), now() FROM generate_series(1, 20000) AS n
"""


if __name__ == "__main__":
    print(json.dumps(figures(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS), indent=2))
