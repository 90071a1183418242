"""The compared storage designs, each with every feature that the product needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks._storage.sql import (
    ACK,
    AFTER,
    AROUND,
    COLUMNS,
    HELD,
    HISTORY,
    INSERT,
    NAMES,
    READY,
    TAKE,
    WAITING,
    daily,
    transition,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A schema and its statements. *hot* are the tables that hold waiting and running jobs."""

    name: str
    schema: str
    insert: str
    claim: str
    claim_after: str
    ack: str
    history: str
    forget: tuple[str, ...]
    hot: tuple[str, ...]


def claims(table: str, where: str) -> dict[str, str]:
    """Return the claim from the head of the queue, and the one that resumes after a key."""
    return {
        name: TAKE.format(table=table, where=where, ready=READY.format(table=table, after=after))
        for name, after in (("claim", ""), ("claim_after", AFTER))
    }


def dropped(parent: str) -> tuple[str, ...]:
    return tuple(f"DROP TABLE {parent}_{day}" for day in range(7))


_READY_INDEX: Final = "(queue, priority, scheduled_for, id)"

STATUS_LEAVES: Final = Design(
    name="status leaves",
    schema=f"""
        CREATE TABLE th_jobs ({COLUMNS}) PARTITION BY LIST (status);
        CREATE TABLE th_jobs_waiting PARTITION OF th_jobs FOR VALUES IN {WAITING};
        CREATE TABLE th_jobs_processing PARTITION OF th_jobs FOR VALUES IN ('PROCESSING');
        CREATE TABLE th_jobs_dead PARTITION OF th_jobs FOR VALUES IN ('DEAD');
        CREATE TABLE th_jobs_finished PARTITION OF th_jobs FOR VALUES IN ('SUCCEEDED', 'CANCELED')
            PARTITION BY RANGE (completed_at);
        CREATE UNIQUE INDEX ON th_jobs_waiting (id);
        CREATE UNIQUE INDEX ON th_jobs_processing (id);
        CREATE UNIQUE INDEX ON th_jobs_dead (id);
        CREATE INDEX ON th_jobs_finished (id);
        -- Partial, though no waiting job is exhausted. Otherwise the planner, which expects a partition analyzed while
        -- empty to be empty, would look up ids by a full scan of this index. Only the claim has this condition.
        CREATE INDEX ON th_jobs_waiting {_READY_INDEX} WHERE attempt_count < max_attempts;
        {daily("th_jobs_finished")} {AROUND}
        -- None on PROCESSING, which every transition may leave: so an ack costs nothing, and a claim locks its rows.
        {transition("th_jobs_waiting", "th_jobs_finished", "th_jobs_dead")}
    """,
    insert=INSERT.format(table="th_jobs"),
    **claims("th_jobs", f"AND status IN {WAITING}"),
    ack=ACK.format(held=HELD, where="AND status = 'PROCESSING'"),
    history=HISTORY.format(table="th_jobs"),
    forget=dropped("th_jobs_finished"),
    hot=("th_jobs_waiting", "th_jobs_processing"),
)

_LIVE: Final = "('PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING')"

LIVE_LEAF: Final = Design(
    name="live leaf",
    schema=f"""
        CREATE TABLE th_jobs ({COLUMNS}) PARTITION BY LIST (status);
        CREATE TABLE th_jobs_live PARTITION OF th_jobs FOR VALUES IN {_LIVE} WITH (fillfactor = 70);
        CREATE TABLE th_jobs_dead PARTITION OF th_jobs FOR VALUES IN ('DEAD');
        CREATE TABLE th_jobs_finished PARTITION OF th_jobs FOR VALUES IN ('SUCCEEDED', 'CANCELED')
            PARTITION BY RANGE (completed_at);
        CREATE UNIQUE INDEX ON th_jobs_live (id);
        CREATE UNIQUE INDEX ON th_jobs_dead (id);
        CREATE INDEX ON th_jobs_finished (id);
        CREATE INDEX ON th_jobs_live {_READY_INDEX} WHERE status IN {WAITING};
        CREATE INDEX ON th_jobs_live (lease_expires_at) WHERE status = 'PROCESSING';
        {daily("th_jobs_finished")} {AROUND} {transition("th_jobs")}
    """,
    insert=INSERT.format(table="th_jobs"),
    **claims("th_jobs_live", ""),
    # With PROCESSING alone, the planner might scan the index on lease_expires_at.
    ack=ACK.format(held=HELD, where=f"AND status IN {_LIVE}"),
    history=HISTORY.format(table="th_jobs"),
    forget=dropped("th_jobs_finished"),
    hot=("th_jobs_live",),
)

ONE_TABLE: Final = Design(
    name="one table",
    schema=f"""
        CREATE TABLE th_jobs (
            {COLUMNS},
            PRIMARY KEY (id),
            CHECK (status IN ('PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING', 'SUCCEEDED', 'CANCELED', 'DEAD'))
        ) WITH (fillfactor = 70);
        CREATE INDEX ON th_jobs {_READY_INDEX} WHERE status IN {WAITING};
        CREATE INDEX ON th_jobs (lease_expires_at) WHERE status = 'PROCESSING';
        CREATE INDEX th_jobs_finished ON th_jobs (completed_at) WHERE status IN ('SUCCEEDED', 'CANCELED');
        {AROUND} {transition("th_jobs")}
    """,
    insert=INSERT.format(table="th_jobs"),
    **claims("th_jobs", ""),
    ack=ACK.format(held=HELD, where=""),  # as above: the token alone proves the lease
    history=HISTORY.format(table="th_jobs"),
    forget=(
        """
        DELETE FROM th_jobs WHERE id = ANY(ARRAY(
            SELECT id
              FROM th_jobs
             WHERE status IN ('SUCCEEDED', 'CANCELED')
               AND completed_at < current_date
             ORDER BY completed_at
             LIMIT 1000
               FOR UPDATE SKIP LOCKED
        ))
        """,
    ),
    hot=("th_jobs",),
)

_SETTLED: Final = {
    "status": "'SUCCEEDED'",
    "settled_token": "lease_token",
    "lease_token": "NULL",
    "lease_expires_at": "NULL",
    "completed_at": "statement_timestamp()",
    "result": "NULL",
}

LIVE_AND_HISTORY: Final = Design(
    name="live and history",
    schema=f"""
        CREATE TABLE th_jobs (
            {COLUMNS},
            PRIMARY KEY (id),
            CHECK (status IN ('PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING', 'DEAD'))
        ) WITH (fillfactor = 70);
        CREATE INDEX ON th_jobs {_READY_INDEX} WHERE status IN {WAITING};
        CREATE INDEX ON th_jobs (lease_expires_at) WHERE status = 'PROCESSING';
        CREATE INDEX ON th_jobs (completed_at) WHERE status = 'DEAD';
        CREATE TABLE th_history ({COLUMNS}) PARTITION BY RANGE (completed_at);
        CREATE INDEX ON th_history (id);
        {daily("th_history")} {AROUND} {transition("th_jobs")}
    """,
    insert=INSERT.format(table="th_jobs"),
    **claims("th_jobs", ""),
    ack=f"""
        WITH done AS (
            DELETE FROM th_jobs {HELD} RETURNING *
        )
        INSERT INTO th_history ({", ".join(NAMES)})
        SELECT {", ".join(_SETTLED.get(name, name) for name in NAMES)} FROM done
        RETURNING id
    """,
    history=HISTORY.format(table="th_history"),
    forget=dropped("th_history"),
    hot=("th_jobs",),
)

DESIGNS: Final = {each.name: each for each in (STATUS_LEAVES, LIVE_LEAF, ONE_TABLE, LIVE_AND_HISTORY)}
