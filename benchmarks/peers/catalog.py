"""The systems that are compared: how each is installed and started, its settings, and what it gives up for its speed.

A system has up to two settings: `installed` is what a user has who follows its first page, `tuned` is what its
documentation says about throughput, with one process that runs jobs for each worker that is started, so that one and
two processes mean the same for all. On Redis the tuned setting also writes each command to a file that reaches the
disk every second, as the documentation of Redis suggests for data that matters.
"""

from __future__ import annotations

import sys
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.peers.environments import node_version, node_with, python_with, redis_version, versions

SCRIPTS: Final = Path(__file__).resolve().parent / "systems"
OURS: Final = "taskharbor"
OURS_ON_SQLITE: Final = "taskharbor-sqlite"
POSTGRESQL: Final = "PostgreSQL"
REDIS: Final = "Redis"
SQLITE: Final = "SQLite"
REDIS_OPTIONS: Final = {"installed": (), "tuned": ("--appendonly", "yes", "--appendfsync", "everysec")}
LOSSES: Final = {
    POSTGRESQL: {"installed": "nothing", "tuned": "nothing"},
    REDIS: {"installed": "up to an hour of jobs", "tuned": "up to a second of jobs"},
    SQLITE: {"installed": "nothing", "tuned": "nothing"},
}
"""What a power failure of the store costs. Redis saves all after 10,000 changes in a minute, or 1 in an hour."""


@dataclass(frozen=True, slots=True)
class System:
    """A job system. *unfinished* or *finished* asks its store for the count of such jobs."""

    name: str
    _: KW_ONLY
    store: str = POSTGRESQL
    packages: tuple[str, ...] = ()
    """Its main Python packages; their versions and those of all that they need are in locks/."""
    npm: tuple[str, ...] = ()
    """Its main npm packages, likewise."""
    base: str = ""
    """The system whose environment and script it shares, if it has none of its own."""
    finished: str = ""
    unfinished: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    gives_up: str = ""
    """What it does not promise and TaskHarbor does."""
    coroutines: bool = True
    """Whether it runs async handlers."""
    sync: bool = True
    """Whether it runs sync handlers."""
    callers: bool = True
    """Whether its script enqueues from several callers at once."""
    bulk: bool = True
    """Whether it can enqueue many jobs in one call. If not, its script fills the store from several callers."""
    most: int = 1_000_000_000
    """No drain needs more jobs than this: what it runs in about ten seconds."""
    main: bool = False
    """Whether the quick comparison has it."""

    @property
    def ours(self) -> bool:
        return self.environment == OURS

    @property
    def beside(self) -> str:
        """The name of our system that it is compared with."""
        return OURS_ON_SQLITE if self.store == SQLITE else OURS

    @property
    def environment(self) -> str:
        return self.base or self.name

    def install(self) -> tuple[list[str], dict[str, str]]:
        """Install it if needed. Return the command that its actions follow, and environment variables for it."""
        if self.npm:
            node, modules = node_with(self.name)
            return [node, str(SCRIPTS / "node.mjs"), self.name], {"BENCH_MODULES": str(modules)}
        python = python_with(self.environment) if self.packages else sys.executable
        return [str(python), str(SCRIPTS / f"{self.environment}_app.py")], {}

    def versions(self) -> list[str]:
        """Return the names and versions of its packages and of what runs them."""
        found = versions(self.environment, (*self.packages, *self.npm)) if self.packages or self.npm else []
        if self.npm:
            found.append(f"Node {node_version()}")
        if self.store == REDIS:
            found.append(f"Redis {redis_version()}")
        return found


_NO_FENCE: Final = "a worker that was taken for dead can still record its outcome"
_AT_MOST_ONCE: Final = "a job is removed from the store when it is claimed, so a worker that dies loses it"

SYSTEMS: Final = (
    System(
        OURS,
        unfinished="SELECT count(*) FROM th_jobs WHERE status IN ('PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING')",
        settings={"installed": "taskharbor worker APP", "tuned": "taskharbor worker APP --concurrency 1000"},
        main=True,
    ),
    System(
        "raw",
        finished="SELECT count(*) FROM job WHERE status = 'done'",
        settings={"tuned": "claim and settle 500 in one statement each, psycopg, no framework"},
        gives_up="everything but claims and outcomes: a bound, not a system",
        callers=False,
        main=True,
    ),
    System(
        "graphile",
        npm=("graphile-worker", "pg"),
        unfinished="SELECT count(*) FROM graphile_worker._private_jobs",
        settings={"installed": "defaults", "tuned": "localQueue 500, concurrentJobs 24, batched completion, no log"},
        gives_up=f"finished jobs are deleted; a dead worker's jobs wait for 4 hours; {_NO_FENCE}",
        sync=False,
        main=True,
    ),
    System(
        "pgqueuer",
        packages=("pgqueuer", "asyncpg", "uvloop"),
        unfinished="SELECT count(*) FROM pgqueuer",
        settings={"installed": "batches of 10", "tuned": "batches of 1,000, uvloop"},
        gives_up=_NO_FENCE,
        sync=False,
        main=True,
    ),
    System(
        "pgboss",
        npm=("pg-boss", "pg"),
        finished="SELECT count(*) FROM pgboss.job WHERE state = 'completed'",
        settings={
            "installed": "defaults",
            "tuned": "batchSize 500, burstWhenBatchFull, notifications, polling every 0.5 s",
        },
        gives_up=_NO_FENCE,
        sync=False,
        main=True,
    ),
    System(
        "procrastinate",
        packages=("procrastinate", "psycopg"),
        finished="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
        settings={"installed": "one job at a time", "tuned": "concurrency 20"},
        gives_up="a dead worker's jobs stay as they are until the user's own code finds them",
        most=5_000,
        main=True,
    ),
    System(
        "awa",
        packages=("awa-pg",),
        finished="""
            SELECT (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
                 + (SELECT count(*) FROM awa.done_entries WHERE state = 'completed')
                 + (SELECT coalesce(sum(pruned_completed_count), 0) FROM awa.queue_terminal_rollups)
        """,
        settings={"installed": "4 workers, as on its first page", "tuned": "max_workers 1,024, claim_batch_size 512"},
        gives_up="finished jobs are kept as counts, not as rows",
        sync=False,
    ),
    System(
        "chancy",
        packages=("chancy", "psycopg"),
        finished="SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded'",
        settings={
            "installed": "a process pool, one for each core",
            "tuned": "async executor with concurrency 500 or 20 threads, eager polling, polling every second",
        },
        gives_up="a job that kills its worker is run again without end",
        most=20_000,
    ),
    System(
        "saq",
        packages=("saq", "psycopg", "uvloop"),
        finished="SELECT count(*) FROM saq_jobs WHERE status = 'complete'",
        settings={"installed": "saq, concurrency 10", "tuned": "concurrency 100, uvloop"},
        gives_up=f"a dead worker's jobs are aborted, not run again; {_NO_FENCE}",
        bulk=False,
        most=5_000,
    ),
    System(
        "saq-redis",
        store=REDIS,
        packages=("saq", "redis", "uvloop"),
        base="saq",
        unfinished="ZCARD saq:bench:incomplete",
        settings={"installed": "saq, concurrency 10", "tuned": "concurrency 100, uvloop"},
        gives_up=f"a dead worker's jobs are aborted, not run again; {_NO_FENCE}",
        bulk=False,
        most=20_000,
    ),
    System(
        "dbos",
        packages=("dbos", "psycopg"),
        finished="SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
        settings={
            "installed": "queue without limits, polling every second",
            "tuned": "worker_concurrency 100, polling every 50 ms",
        },
        gives_up="a dead worker's jobs wait until one with the same name is back",
        bulk=False,
        most=4_000,
    ),
    System(
        "celery",
        store=REDIS,
        packages=("celery", "kombu", "redis"),
        unfinished="LLEN celery\nHLEN unacked",
        settings={
            "installed": "celery worker: a child process for each core, acks early",
            "tuned": "one child process, prefetch 128, late acks, no results, gossip, mingle or heartbeat",
        },
        gives_up="acks early as installed; with late acks a dead worker's jobs wait for an hour",
        coroutines=False,
        bulk=False,
        most=10_000,
    ),
    System(
        "dramatiq",
        store=REDIS,
        packages=("dramatiq", "redis"),
        unfinished="HLEN dramatiq:default.msgs",
        settings={
            "installed": "dramatiq: a process for each core, 8 threads each",
            "tuned": "one process, 8 threads, 500 messages fetched ahead",
        },
        gives_up="finished jobs are deleted",
        bulk=False,
        most=20_000,
    ),
    System(
        "rq",
        store=REDIS,
        packages=("rq", "redis"),
        finished="ZCARD rq:finished:bench",
        settings={"installed": "rq worker: a process for each job", "tuned": "SimpleWorker: no new process, no log"},
        gives_up="a dead worker's jobs are failed, not run again",
        most=2_500,
    ),
    System(
        "huey",
        store=REDIS,
        packages=("huey", "redis"),
        unfinished="LLEN huey.redis.bench",
        settings={
            "installed": "huey_consumer: one thread",
            "tuned": "4 threads, polling every 10 ms, no periodic tasks, no results",
        },
        gives_up=_AT_MOST_ONCE,
        coroutines=False,
        bulk=False,
        most=30_000,
    ),
    System(
        "arq",
        store=REDIS,
        packages=("arq", "redis", "uvloop"),
        unfinished="ZCARD arq:queue",
        settings={
            "installed": "arq: 10 jobs at a time, polling every 0.5 s",
            "tuned": "100 jobs at a time, polling every 50 ms, no results, uvloop",
        },
        gives_up="a dead worker's jobs wait for the job timeout, 5 minutes as installed",
        sync=False,
        bulk=False,
        most=10_000,
    ),
    System(
        "taskiq",
        store=REDIS,
        packages=("taskiq", "taskiq-redis", "redis", "uvloop"),
        unfinished="EVAL \"local g = redis.call('XINFO', 'GROUPS', 'bench')[1]; return g[6] + g[12]\" 0",
        settings={
            "installed": "taskiq worker: 2 processes, 100 tasks at a time each",
            "tuned": "one process, 1,000 tasks at a time, no log",
        },
        gives_up="a dead worker's jobs wait for 10 minutes; finished jobs stay in the stream until the user trims it",
        bulk=False,
        most=20_000,
    ),
    System(
        OURS_ON_SQLITE,
        store=SQLITE,
        base=OURS,
        unfinished="SELECT count(*) FROM th_jobs WHERE status IN ('PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING')",
        settings={"installed": "taskharbor worker APP", "tuned": "taskharbor worker APP --concurrency 1000"},
    ),
    System(
        "huey-sqlite",
        store=SQLITE,
        packages=("huey",),
        base="huey",
        unfinished="SELECT count(*) FROM task",
        settings={
            "installed": "huey_consumer: one thread",
            "tuned": "4 threads, polling every 10 ms, no periodic tasks, no results",
        },
        gives_up=_AT_MOST_ONCE,
        coroutines=False,
        bulk=False,
        most=15_000,
    ),
)
