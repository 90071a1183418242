"""What tracing costs a worker on PostgreSQL: its CPU time per job with spans and without, and that of one span.

The handlers do nothing: the worker makes as many spans as their CPU time allows (docs/tracing.md).
"""

from __future__ import annotations

import tempfile
import time
from contextvars import copy_context
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from benchmarks._pairs import BASE, compared, drain
from benchmarks.postgres import store
from benchmarks.worker import nothing, nothing_sync
from taskharbor import Client, JobRequest, MemoryDriver
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled
from taskharbor.core.states import Status
from taskharbor.observability.spans import Spans
from taskharbor.testing.postgres import PostgresServer
from taskharbor.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.sampling import Sampler

    from taskharbor.observability.tracing import TracingOption

PAIRS = 15
JOBS = 50_000  # for about half a second: the number of spans is bounded by the second
SPANS = 5_000


def figures(pairs: int = PAIRS) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, PostgresServer.start(Path(folder), durable=False) as server:
        return {
            "async handlers, concurrency 1,000": measured(server, nothing, 1_000, pairs),
            "sync handlers in 64 threads": measured(server, nothing_sync, 64, pairs),
            "microseconds of CPU time per span": span_costs(),
        }


def measured(
    server: PostgresServer, handler: Callable[..., Any], concurrency: int, pairs: int
) -> dict[str, dict[str, float]]:
    kinds: Mapping[str, TracingOption] = {
        BASE: False,
        "on, without an SDK": True,
        "on, 1 % sampled": provider(ParentBasedTraceIdRatio(0.01)),
        "on, all sampled": provider(),
    }
    with store(server) as (driver, _):

        def run(kind: str) -> float:
            # Each job has a context of its own, as if it had been enqueued alone; none if tracing is off.
            ids = (f"{number:016x}" for number in range(1, JOBS + 1))
            contexts = ({} if kind == BASE else {"traceparent": f"00-{2 * each}-{each}-01"} for each in ids)
            Client(driver).enqueue_many(JobRequest(type="greet", metadata=each) for each in contexts)
            worker = Worker(driver, concurrency=concurrency, janitor=False, tracing=kinds[kind])
            worker.register("greet", handler)
            return drain(worker, JOBS)

        return compared([*kinds], run, pairs=pairs)


def span_costs() -> dict[str, float]:
    """Return the CPU time of the span of an attempt with a link, made one by one."""
    driver = MemoryDriver()
    metadata = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    Client(driver).enqueue(JobRequest(type="greet", metadata=metadata))
    lease = timedelta(minutes=1)
    [claim] = driver.reserve("default", token=new_token(), worker="w", lease=lease, limit=1, overdue_after=lease)
    settled = Settled(claim.job.id, Status.SUCCEEDED)

    def cost(spans: Spans) -> float:
        began = time.thread_time()
        for _ in range(SPANS):
            spans._renewed_at = 0.0  # noqa: SLF001  so that no span is left out
            started = copy_context().run(spans.start_attempt, claim.job, "w")
            if started is None:
                raise RuntimeError("no span was made")
            spans.end_attempt(started, Outcome.ack(), settled, seconds=0.001)
        return (time.thread_time() - began) / SPANS * 1e6

    samplers = {"sampled": None, "not sampled": ParentBasedTraceIdRatio(0.0)}
    return {name: round(min(cost(Spans(provider(sampler))) for _ in range(3)), 1) for name, sampler in samplers.items()}


class Discard(SpanExporter):
    """Takes spans and drops them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002  of the protocol
        return SpanExportResult.SUCCESS


def provider(sampler: Sampler | None = None) -> TracerProvider:
    made = TracerProvider(sampler, shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(Discard()))
    return made
