"""Claims on PostgreSQL: the statements return few columns, and the job must still equal its row."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.types.json import Jsonb

from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import Claim, Lease
from taskharbor.core.results import RefusalReason
from taskharbor.drivers.backlogs import position_of
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.rows import UuidArray, UuidArrayDumper, uuids
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER
from tests.support.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.results import Refused

JOBS: Final = 300
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
PAST: Final = NOW - timedelta(days=1)
WAITING: Final = ["PENDING", "ENQUEUED", "FAILED"]


@pytest.fixture
def driver() -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(emptied(), clock=ManualClock(NOW))) as driver:
        yield driver


@pytest.mark.parametrize(
    ("way", "statuses"),
    [
        ("reserve", WAITING),
        ("reserve", ["PROCESSING"]),
        ("claim", ["ENQUEUED"]),
        ("claim", ["PROCESSING"]),
    ],
)
def test_every_claimable_row_is_claimed_as_it_is_stored(driver: PostgresDriver, way: str, statuses: list[str]) -> None:
    rng, token = Random(way + statuses[0]), new_token()
    job_ids = _insert_rows(driver, [_row(rng, rng.choice(statuses)) for _ in range(JOBS)])

    claims = _claim(driver, way, job_ids, token=token)

    jobs = driver.inspector.get(job_ids)
    assert len(claims) == JOBS
    for claim in claims:
        assert isinstance(claim, Claim)
        assert claim == Claim(jobs[claim.job.id], Lease(claim.job.id, token, NOW + LEASE))
        assert claim.job.data == {"n": 1}
    if statuses == WAITING:
        assert claims == sorted(claims, key=position_of)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", ["ENQUEUED", "PROCESSING"])
def test_a_locked_job_is_refused_by_message_and_the_others_are_claimed(driver: PostgresDriver, status: str) -> None:
    rng = Random(status)
    first, locked, last = _insert_rows(driver, [_row(rng, status) for _ in range(3)])

    with psycopg.connect(driver._connections.address.url) as other:  # noqa: SLF001  the same database
        other.execute("SELECT FROM th_jobs WHERE id = %s FOR UPDATE", [locked])
        answers = _claim(driver, "claim", [first, locked, last], token=new_token())
    [later] = _claim(driver, "claim", [locked], token=new_token())

    assert [answer.job.id if isinstance(answer, Claim) else answer.reason for answer in answers] == [
        first,
        RefusalReason.LEASED,
        last,
    ]
    assert [answer.until for answer in answers if not isinstance(answer, Claim)] == [NOW]  # its message comes soon
    assert isinstance(later, Claim)


def test_ids_are_sent_as_one_binary_parameter() -> None:
    ids = [new_job_id() for _ in range(3)]
    with psycopg.connect(emptied()) as db:
        db.adapters.register_dumper(UuidArray, UuidArrayDumper)

        assert db.execute("SELECT %s, cardinality(%s)", [uuids(ids), uuids([])]).fetchone() == (ids, 0)


def _claim(driver: PostgresDriver, way: str, job_ids: list[JobId], **fields: Any) -> Sequence[Claim | Refused]:
    asked = {"worker": "w-1", "lease": LEASE, **fields}
    if way == "claim":
        return driver.claim(job_ids, queue="mail", **asked)
    return driver.reserve("mail", limit=JOBS, overdue_after=OVERDUE_AFTER, **asked)


def _row(rng: Random, status: str) -> dict[str, Any]:
    """Return a row that the table accepts, with or without a value in each column that may have one."""
    row: dict[str, Any] = {
        "id": new_job_id(),
        "type": rng.choice(["greet", "mail"]),
        "queue": "mail",
        "priority": rng.randrange(-2, 3),
        "status": status,
        "scheduled_for": PAST - rng.randrange(5) * timedelta(minutes=1),
        "created_at": PAST - timedelta(days=rng.randrange(9)),
        "max_attempts": 9,
        "payload": b'{"n": 1}',
    }
    usually_empty = {
        "attempt_count": rng.randrange(8),
        "timeout": timedelta(days=1, seconds=2, microseconds=3),
        "last_error": "boom",
        "failed_at": PAST,
        "settled_token": new_token(),
        "life": 3,
        "dispatch_at": PAST,
        "sent_at": PAST,
        "sends": 4,
        "resends": 5,
        "releases": 6,
        "cancel_requested_at": PAST,
        "idempotency_key": "key",
        "result": b"1",
        "progress": Jsonb({"done": 1, "total": None, "note": "ä"}),
        "metadata": Jsonb({"tenant": "ä"}),
    }
    if status == "PROCESSING":
        del usually_empty["cancel_requested_at"]  # such a job is not reclaimed
        row |= {"lease_token": new_token(), "lease_expires_at": PAST, "worker_id": "w-0", "processing_started_at": PAST}
    # Some rows have one such value, some have several, and some have none.
    return row | dict(rng.sample([*usually_empty.items()], k=rng.choice([0, 1, 1, 1, rng.randrange(9)])))


def _insert_rows(driver: PostgresDriver, rows: list[dict[str, Any]]) -> list[JobId]:
    with psycopg.connect(driver._connections.address.url) as db:  # noqa: SLF001  the same database
        for row in rows:
            names, places = ", ".join(row), ", ".join(f"%({name})s" for name in row)
            db.execute(f"INSERT INTO th_jobs ({names}) VALUES ({places})".encode(), row)
    return [row["id"] for row in rows]
