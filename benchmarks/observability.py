"""What metrics cost a worker on PostgreSQL: its CPU time per job, compared with that of a worker without.

The handlers do nothing, and nothing is logged: with any work in between, metrics cost a smaller part. On a machine with
other work, two equal workers differ by up to a twentieth, most of all those with 64 threads. So the CPU time in the
hook itself, by the clock of its thread, is measured too.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections import defaultdict
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
    from collections.abc import Callable
    from typing import Any

    from taskharbor.core.hooks import HookEvent

METRICS = "metrics"
PAIRS = 31
JOBS = 10_000


def figures(pairs: int = PAIRS) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, PostgresServer.start(Path(folder), durable=False) as server:
        return {
            "async handlers, concurrency 1,000": measured(server, nothing, 1_000, JOBS, pairs),
            "async handlers, concurrency 16": measured(server, nothing, 16, JOBS, pairs),
            "sync handlers in 64 threads": measured(server, nothing_sync, 64, JOBS, pairs),
        }


def measured(
    server: PostgresServer, handler: Callable[..., Any], concurrency: int, count: int, pairs: int
) -> dict[str, dict[str, float]]:
    with store(server) as (driver, _):
        in_hook: list[float] = []

        def run(kind: str) -> float:
            fill(driver, count)
            hooks = [] if kind == BASE else [TimedHook(PrometheusHook(CollectorRegistry()))]
            worker = Worker(driver, concurrency=concurrency, janitor=False, hooks=hooks)
            worker.register("greet", handler)
            taken = drain(worker, count)
            in_hook.extend(hook.seconds / count * 1e6 for hook in hooks)
            return taken

        found = compared([BASE, METRICS], run, pairs=pairs)
    found[METRICS]["µs per job in the hook"] = round(statistics.median(in_hook), 2)
    return found


class TimedHook:
    """Calls a hook, and adds up the CPU time of its calls, which come from several threads."""

    def __init__(self, hook: PrometheusHook) -> None:
        self._hook = hook
        self.ignored_events = hook.ignored_events
        self._seconds: defaultdict[int, float] = defaultdict(float)

    @property
    def seconds(self) -> float:
        return sum(self._seconds.values())

    def __call__(self, event: HookEvent) -> None:
        began = time.thread_time()
        self._hook(event)
        self._seconds[threading.get_ident()] += time.thread_time() - began
