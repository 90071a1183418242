"""What metrics cost a worker on PostgreSQL: its CPU time per job, compared with that of a worker without.

The handlers do nothing, and nothing is logged: with any work in between, metrics cost a smaller part.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from benchmarks._pairs import BASE, compared, drain
from benchmarks.postgres import store
from benchmarks.worker import fill, nothing, nothing_sync
from taskharbor.observability.prometheus import PrometheusHook
from taskharbor.testing.postgres import PostgresServer
from taskharbor.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from taskharbor.core.hooks import Hook

PAIRS = 31
JOBS = 10_000


def figures(pairs: int = PAIRS) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, PostgresServer.start(Path(folder), durable=False) as server:
        return {
            "async handlers, concurrency 1,000": measured(server, nothing, 1_000, JOBS, pairs),
            "async handlers, concurrency 16": measured(server, nothing, 16, JOBS, pairs),
            "sync handlers in 64 threads": measured(server, nothing_sync, 64, JOBS // 2, pairs),
        }


def measured(
    server: PostgresServer, handler: Callable[..., Any], concurrency: int, count: int, pairs: int
) -> dict[str, dict[str, float]]:
    with store(server) as (driver, _):

        def run(kind: str) -> float:
            fill(driver, count)
            worker = Worker(driver, concurrency=concurrency, janitor=False, hooks=KINDS[kind]())
            worker.register("greet", handler)
            return drain(worker, count)

        return compared([*KINDS], run, pairs=pairs)


KINDS: Mapping[str, Callable[[], Sequence[Hook]]] = {
    BASE: lambda: (),
    "metrics": lambda: [PrometheusHook(CollectorRegistry())],
}
