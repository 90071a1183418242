"""A worker on one connection that runs whole cycles or drains a backlog."""

from __future__ import annotations

import itertools
import math
import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import psycopg
from psycopg.errors import SerializationFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks._storage.designs import Design

PAYLOAD: Final = b'{"user": "u12345", "kind": "email", "name": "Ada Lovelace"}'
RESCAN_SECONDS: Final = 1.0  # between two scans from the head of the queue
# The settings of the product's connections. By default the planner estimates LIMIT $1 as a tenth of the table and
# a partition that was empty when analyzed as still empty, so it sorts, hashes or scans whole partitions.
PINS: Final = (
    "plan_cache_mode=force_generic_plan",
    "enable_seqscan=off",
    "enable_bitmapscan=off",
    "enable_hashjoin=off",
    "enable_mergejoin=off",
)

Key = tuple[int, Any, UUID]


def connect(url: str, *, pinned: bool = True) -> psycopg.Connection:
    options = " ".join(f"-c {pin}" for pin in PINS) if pinned else ""
    return psycopg.connect(url, autocommit=True, prepare_threshold=0, options=options)


@dataclass(slots=True)
class Worker:
    """A worker that counts its jobs, its claims, and repeats due to rows that changed partition (SQLSTATE 40001)."""

    connection: psycopg.Connection
    design: Design
    batch: int
    payload: bytes = PAYLOAD
    resumes: bool = False
    jobs: int = 0
    claims: int = 0
    repeated: int = 0
    _after: Key | None = field(default=None, init=False)
    _scanned: float = field(default=0.0, init=False)

    def warm_up(self) -> None:
        """Prepare the statements and read the catalog, without touching a job."""
        self._execute(self.design.insert, ids=list[UUID](), payloads=list[bytes]())
        self._claim_batch(uuid4(), None, queue="unused")
        self._execute(self.design.ack, ids=list[UUID](), token=uuid4())
        self.claims = 0

    def cycles(self, count: int) -> None:
        """Insert, claim and ack *count* jobs."""
        for _ in range(count // self.batch):
            ids = [*itertools.islice(new_ids(), self.batch)]
            self._execute(self.design.insert, ids=ids, payloads=[self.payload] * self.batch)
            self.turn()

    def drain(self) -> None:
        """Claim and ack until no job is left."""
        while self.turn():
            pass

    def turn(self) -> int:
        """Claim a batch and ack it. Return the number of jobs."""
        token = uuid4()
        claimed = self._claim(token)
        if claimed:
            acked = self._execute(self.design.ack, ids=[row[0] for row in claimed], token=token)
            if len(acked) != len(claimed):
                raise RuntimeError(f"{self.design.name}: {len(claimed)} claimed, {len(acked)} acked")
        self.jobs += len(claimed)
        return len(claimed)

    def _claim(self, token: UUID) -> Sequence[tuple[Any, ...]]:
        if not self.resumes:
            return self._claim_batch(token, None)
        now = time.monotonic()
        if self._after is None or now - self._scanned > RESCAN_SECONDS:
            self._after, self._scanned = None, now
        from_head = self._after is None
        claimed = self._claim_batch(token, self._after)
        # A short batch reached the end. Jobs inserted before the cursor are found by a scan from the head.
        self._after = max((row[1], row[2], row[0]) for row in claimed) if len(claimed) == self.batch else None
        return claimed if claimed or from_head else self._claim(token)

    def _claim_batch(self, token: UUID, after: Key | None, queue: str = "default") -> Sequence[tuple[Any, ...]]:
        self.claims += 1
        asked = {
            "queue": queue,
            "types": None,
            "overdue_after": timedelta(seconds=60),
            "limit": self.batch,
            "token": token,
        }
        if after is None:
            return self._execute(self.design.claim, **asked)
        priority, scheduled_for, id = after
        return self._execute(self.design.claim_after, **asked, priority=priority, scheduled_for=scheduled_for, id=id)

    def _execute(self, statement: str, **asked: Any) -> Sequence[tuple[Any, ...]]:
        cursor = self.connection.cursor(binary=True)
        while True:
            try:
                cursor.execute(statement, asked)
            except SerializationFailure:
                self.repeated += 1
            else:
                return cursor.fetchall() if cursor.description else ()


def server_time(connection: psycopg.Connection) -> float:
    """Return the CPU seconds of the backend of *connection*, which vary less than wall time on a busy machine."""
    try:
        statistics = Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text("ascii")
    except FileNotFoundError:
        return math.nan
    return int(statistics.split()[0]) / 1e9


def new_ids() -> Iterator[UUID]:
    """Yield time-ordered ids, like those of the client."""
    while True:
        yield UUID(int=time.time_ns() // 1_000_000 << 80 | 0x7 << 76 | 0x2 << 62 | random.getrandbits(62))
