"""The cost of the parts that all stores share: codec, ids, client, and full cycles on the memory driver."""

from __future__ import annotations

import json
import statistics
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from taskharbor import Client, JobRequest, JsonCodec, MemoryDriver
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
JOBS = 5_000
LEASE = timedelta(seconds=30)
PAYLOAD = {"to": "a@b.c", "n": 7, "tags": ["x", "y"]}


def figures() -> dict[str, object]:
    codec = JsonCodec()
    encoded = codec.encode(PAYLOAD, context=b"")
    return {
        "microseconds": {
            "codec encode": microseconds(lambda: codec.encode(PAYLOAD, context=b"")),
            "codec decode": microseconds(lambda: codec.decode(encoded, context=b"")),
            "json.dumps and encode": microseconds(lambda: json.dumps(PAYLOAD).encode()),
            "json.loads": microseconds(lambda: json.loads(encoded)),
            "new job id": microseconds(new_job_id),
        },
        "jobs a second": {
            "enqueue, one by one": median(partial(enqueue, 1)),
            "enqueue, batches of 100": median(partial(enqueue, 100)),
            **{f"insert, reserve, ack, batches of {batch}": median(partial(cycle, batch)) for batch in (1, 10, 100)},
        },
    }


def microseconds(call: Callable[[], object], *, calls: int = 20_000) -> float:
    best = min(timed(lambda: [call() for _ in range(calls)]) for _ in range(ROUNDS))
    return round(best / calls * 1e6, 2)


def median(rate: Callable[[], float]) -> int:
    return round(statistics.median(rate() for _ in range(ROUNDS)))


def enqueue(batch: int) -> float:
    client = Client(MemoryDriver())
    requests = [JobRequest(type="greet", payload=PAYLOAD) for _ in range(batch)]
    return JOBS / timed(lambda: [client.enqueue_many(requests) for _ in range(JOBS // batch)])


def cycle(batch: int) -> float:
    """Insert, reserve and ack jobs, *batch* at a time."""
    driver = MemoryDriver()
    client = Client(driver)
    requests = [JobRequest(type="greet", payload=PAYLOAD) for _ in range(batch)]

    def once() -> None:
        client.enqueue_many(requests)
        claims = driver.reserve(
            "default",
            token=new_token(),
            worker="w",
            lease=LEASE,
            limit=batch,
            overdue_after=LEASE,
        )
        driver.settle([Settlement(claim.lease, Outcome.ack()) for claim in claims])

    def all_of_them() -> None:
        for _ in range(JOBS // batch):
            once()

    return JOBS / timed(all_of_them)


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
