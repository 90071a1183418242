"""Spans of enqueues and attempts, and the trace id of a job."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags

from taskharbor import (
    Cancel,
    Client,
    Context,
    EnqueueRefused,
    Harbor,
    IdempotencyConflict,
    JobRequest,
    MemoryDriver,
    Retry,
    Snooze,
    Status,
    StoreUnavailable,
    UsageError,
)
from taskharbor.core.errors import LeaseMismatch
from taskharbor.core.ids import new_token
from taskharbor.core.results import JobFilter
from taskharbor.core.trace_context import ATTEMPT_TRACEPARENT, parse_traceparent
from taskharbor.observability import spans
from taskharbor.observability.tracing import spans_for, trace_id_of
from taskharbor.schedules import Scheduler
from tests.support.schedule_rig import HOUR, ScheduleRig, hourly, made
from tests.support.traces import Traces, is_child, links, traceparent
from tests.support.worker_rig import drained, meddled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from taskharbor.core.model import Job

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture
def traced(traces: Traces) -> Iterator[Harbor]:
    with Harbor("memory://", tracing=traces.provider) as harbor:
        yield harbor


def stored(harbor: Harbor) -> Job:
    [summary] = harbor.driver.inspector.find(JobFilter(), limit=10).jobs
    return harbor.handle(summary.id).job()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize(
    ("metadata", "trace_id"),
    [({}, None), ({"traceparent": PARENT}, TRACE), ({"traceparent": "of a user's own"}, None)],
)
def test_the_trace_id_of_a_job_is_in_its_metadata(metadata: dict[str, str], trace_id: str | None) -> None:
    driver = MemoryDriver()
    enqueued = Client(driver).enqueue(JobRequest(type="greet", metadata=metadata))

    [job] = driver.inspector.get([enqueued.id]).values()
    assert trace_id_of(job) == trace_id_of(job.summary()) == trace_id


def test_opentelemetry_is_not_imported_unless_tracing_is_on() -> None:
    code = (
        "import sys; from taskharbor import Harbor; from taskharbor.observability.tracing import trace_id_of\n"
        "harbor = Harbor('memory://'); harbor.worker(); sys.exit('opentelemetry' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_tracing_without_opentelemetry_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "taskharbor.observability.spans", None)

    with pytest.raises(UsageError, match=r"opentelemetry-api; run: .*taskharbor\[otel\]|install .*\[otel\]"):
        Harbor("memory://", tracing=True)


def test_the_environment_turns_tracing_on_and_an_argument_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Harbor("memory://").spans is None
    monkeypatch.setenv("TASKHARBOR_TRACING", "On")
    assert Harbor("memory://").spans is not None
    assert Harbor("memory://", tracing=False).spans is None
    monkeypatch.setenv("TASKHARBOR_TRACING", "0")
    assert Harbor("memory://").spans is None
    monkeypatch.setenv("TASKHARBOR_TRACING", "maybe")
    with pytest.raises(UsageError, match="TASKHARBOR_TRACING is 'maybe': must be one of"):
        Harbor("memory://")


def test_without_an_sdk_jobs_run_and_nothing_is_stored() -> None:
    with Harbor("memory://", tracing=True) as harbor:
        handle = _failing_once(harbor).enqueue()
        harbor.worker().drain()

        assert handle.job().status is Status.SUCCEEDED
        assert handle.job().metadata == {}


def test_the_global_provider_is_used_even_if_it_is_set_later() -> None:
    code = """
from taskharbor import Harbor
from tests.support.traces import Traces
from opentelemetry import trace
harbor = Harbor("memory://", tracing=True)
@harbor.task
def greet() -> None: ...
greet.enqueue()
traces = Traces()
trace.set_tracer_provider(traces.provider)
greet.enqueue()
harbor.worker().drain()
assert [span.name for span in traces.spans] == ["enqueue default", *["process default"] * 2], traces.spans
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def _acall(call: Any) -> None:
    await call


@pytest.mark.parametrize("way", ["enqueue", "aenqueue", "using", "one call"])
def test_an_enqueue_is_a_child_of_the_current_span(traces: Traces, traced: Harbor, way: str) -> None:
    greet = _failing_once(traced)
    with trace.get_tracer("shop", tracer_provider=traces.provider).start_as_current_span("request"):
        if way == "enqueue":
            greet.enqueue()
        elif way == "aenqueue":
            asyncio.run(_acall(greet.aenqueue()))
        elif way == "using":
            greet.using(metadata={"tenant": "7"}).enqueue()
        else:
            traced.enqueue_many([greet.call()])

    request, sent = traces.spans
    assert (request.name, sent.name, sent.kind) == ("request", "enqueue default", SpanKind.PRODUCER)
    assert is_child(sent, of=request)
    job = stored(traced)
    assert attributes(sent)["messaging.message.id"] == str(job.id)
    assert job.metadata["traceparent"] == traceparent(sent)
    assert job.metadata.get("tenant") == ("7" if way == "using" else None)


def test_a_bulk_enqueue_is_one_span_whose_context_all_jobs_get(traces: Traces, traced: Harbor) -> None:
    greet = _failing_once(traced)
    asyncio.run(_acall(traced.aenqueue_many([greet.call(), greet.call()])))
    traced.enqueue_many([greet.call(), greet.using(queue="mail").call()])
    traced.enqueue_many([])

    same, mixed = traces.spans
    assert (same.name, same.kind) == ("enqueue default", SpanKind.PRODUCER)
    assert attributes(same)["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in attributes(same)
    assert mixed.name == "enqueue"
    assert "messaging.destination.name" not in attributes(mixed)
    jobs = traced.driver.inspector.find(JobFilter(), limit=10).jobs
    assert sorted(job.metadata["traceparent"] for job in jobs) == sorted([traceparent(same), traceparent(mixed)] * 2)


def test_a_stored_context_is_the_parent_without_a_current_span(traces: Traces) -> None:
    client = Client(MemoryDriver(), tracing=traces.provider)
    client.enqueue(JobRequest(type="greet", metadata={"traceparent": PARENT, "tracestate": "a=1"}))
    client.enqueue(JobRequest(type="greet", metadata={"traceparent": "malformed", "tracestate": "a=1"}))

    child, root = traces.spans
    assert child.parent is not None
    assert f"00-{child.parent.trace_id:032x}-{child.parent.span_id:016x}-01" == PARENT
    assert (root.parent, links(root), links(child)) == (None, [], [])


def test_contexts_of_other_traces_become_links(traces: Traces) -> None:
    driver = MemoryDriver()
    client = Client(driver, tracing=traces.provider)
    requests = [
        JobRequest(type="greet", metadata={"traceparent": each, "tracestate": "a=1"}) for each in (PARENT, OTHER)
    ]
    client.enqueue_many(requests)
    with trace.get_tracer("shop", tracer_provider=traces.provider).start_as_current_span("request"):
        client.enqueue(requests[0])

    many, _, one = traces.spans
    assert (many.parent, links(many)) == (None, [PARENT, OTHER])
    assert links(one) == [PARENT]
    jobs = driver.inspector.find(JobFilter(), limit=10).jobs
    assert {trace_id_of(job) for job in jobs} == {traceparent(each)[3:35] for each in (many, one)}
    assert all("tracestate" not in job.metadata for job in jobs)


def test_a_repeated_key_names_the_first_job_and_a_conflict_is_an_error(traces: Traces) -> None:
    client = Client(MemoryDriver(), tracing=traces.provider)
    first = client.enqueue(JobRequest(type="greet", idempotency_key="k"))
    client.enqueue(JobRequest(type="greet", idempotency_key="k"))
    conflicting = JobRequest(type="greet", payload=1, idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        client.enqueue(conflicting)
    with pytest.raises(EnqueueRefused):
        client.enqueue_many([conflicting, JobRequest(type="greet")])

    _, existed, conflict, bulk = traces.spans
    assert attributes(existed)["taskharbor.existed"] is True
    assert attributes(existed)["messaging.message.id"] == str(first.id)
    for span in (conflict, bulk):
        assert attributes(span)["error.type"] == "IdempotencyConflict"
        assert span.status.status_code is StatusCode.ERROR


def test_an_enqueue_that_fails_is_an_error(traces: Traces) -> None:
    def away(verb: str, call: Callable[[], Any]) -> Any:
        if verb == "insert":
            raise StoreUnavailable("connection refused", retry_in=timedelta(seconds=1))
        return call()

    with pytest.raises(StoreUnavailable):
        Client(meddled(MemoryDriver(), away), tracing=traces.provider).enqueue(JobRequest(type="greet"))

    [span] = traces.spans
    assert attributes(span)["error.type"] == "StoreUnavailable"
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]


def test_a_handlers_spans_are_children_of_its_attempt(traces: Traces, traced: Harbor) -> None:
    tracer = trace.get_tracer("shop", tracer_provider=traces.provider)

    @traced.task
    def sync() -> None:
        with tracer.start_as_current_span("in sync"):
            pass

    @traced.task
    async def coroutine() -> None:
        await asyncio.sleep(0)
        with tracer.start_as_current_span("in coroutine"):
            pass

    @traced.task
    async def parent() -> None:
        await coroutine.aenqueue()

    for task in (sync, parent):
        task.enqueue()
    traced.worker().drain()

    attempts = {attributes(span)["taskharbor.task.name"]: span for span in traces.named("process default")}
    assert is_child(traces.one("in sync"), of=attempts["sync"])
    assert is_child(traces.one("in coroutine"), of=attempts["coroutine"])
    [nested] = [span for span in traces.named("enqueue default") if is_child(span, of=attempts["parent"])]
    assert links(attempts["coroutine"]) == [traceparent(nested)]
    assert all(span.parent is None for span in attempts.values())


def test_an_attempt_never_joins_the_trace_of_the_caller_that_runs_the_worker(traces: Traces, traced: Harbor) -> None:
    _failing_once(traced).enqueue()
    with trace.get_tracer("shop", tracer_provider=traces.provider).start_as_current_span("script"):
        traced.worker().drain()

    assert [span.parent for span in traces.named("process default")] == [None, None]


def test_the_duration_of_a_span_is_that_of_the_handler(traces: Traces) -> None:
    def late(verb: str, call: Callable[[], Any]) -> Any:
        if verb == "settle":
            settling.append(time.time_ns())
            threading.Event().wait(0.2)  # the outcome is recorded after this
        return call()

    settling: list[int] = []
    driver = meddled(MemoryDriver(), late)
    Client(driver).enqueue(JobRequest(type="greet"))
    drained(driver, {"greet": lambda _job: None}, tracing=traces.provider)

    [span] = traces.spans
    assert span.start_time is not None
    assert span.end_time is not None
    # To 0.1 s: its start is that of the span, a little after that of the handler.
    assert span.start_time <= span.end_time < settling[0] + 100_000_000


def test_each_attempt_links_to_the_enqueue_and_to_the_attempt_before(traces: Traces, traced: Harbor) -> None:
    @traced.task(max_attempts=2)
    def report() -> None:
        if len(traces.named("process default")) == 0:
            raise Snooze(0)
        if len(traces.named("process default")) < 3:
            raise Retry("broken", after=0)

    handle = report.enqueue()
    traced.worker().drain()
    assert handle.status() is Status.DEAD
    traced.driver.requeue([handle.id], token=new_token(), by="ops", reason="fixed")
    traced.worker().drain()
    assert handle.status() is Status.SUCCEEDED

    [sent] = traces.named("enqueue default")
    attempts = traces.named("process default")
    assert [attributes(span).get("taskharbor.outcome") for span in attempts] == ["snooze", "retry", "fail", None]
    assert [attributes(span).get("taskharbor.status") for span in attempts] == ["PENDING", "FAILED", "DEAD", None]
    assert links(attempts[0]) == [traceparent(sent)]
    for before, span in pairwise(attempts):
        assert links(span) == [traceparent(sent), traceparent(before)]
    assert handle.job().metadata[ATTEMPT_TRACEPARENT] == traceparent(attempts[2])


def test_only_a_failure_is_an_error(traces: Traces, traced: Harbor) -> None:
    @traced.task
    def stop() -> None:
        raise Cancel("no longer needed")

    @traced.task(max_attempts=1)
    def fail() -> None:
        raise ValueError("secret 7")

    for task in (stop, fail):
        task.enqueue()
        traced.worker().drain()

    canceled, failed = traces.named("process default")
    assert attributes(canceled)["taskharbor.outcome"] == "cancel"
    assert (canceled.status.status_code, len(canceled.events)) == (StatusCode.UNSET, 0)
    assert attributes(failed)["error.type"] == "ValueError"
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "secret 7")


def test_the_error_of_a_span_is_redacted(traces: Traces) -> None:
    with Harbor("memory://", tracing=traces.provider, redact=lambda text: text.replace("secret", "***")) as harbor:

        @harbor.task(max_attempts=1)
        def fail() -> None:
            raise ValueError("secret 7")

        fail.enqueue()
        harbor.worker().drain()

    [span] = traces.named("process default")
    [event] = span.events
    assert span.status.description == "*** 7"
    assert "secret" not in str(dict(event.attributes or {}))


def test_a_job_completed_in_the_handlers_transaction_is_no_error(traces: Traces, tmp_path: Path) -> None:
    with Harbor(f"sqlite:///{tmp_path}/jobs.db", tracing=traces.provider) as harbor:

        @harbor.task
        def pay(ctx: Context) -> None:
            with closing(sqlite3.connect(tmp_path / "jobs.db")) as db, db:
                db.execute("BEGIN IMMEDIATE")
                ctx.complete_in(db)

        pay.enqueue()
        harbor.worker().drain()

    [span] = traces.named("process default")
    assert (span.status.status_code, attributes(span).get("taskharbor.outcome")) == (StatusCode.UNSET, None)


def test_an_outcome_that_the_store_refuses_is_an_error(traces: Traces) -> None:
    def refuse(verb: str, call: Callable[[], Any]) -> Any:
        answer = call()
        return [LeaseMismatch(each.job_id) for each in answer] if verb == "settle" else answer

    driver = meddled(MemoryDriver(), refuse)
    Client(driver).enqueue(JobRequest(type="greet"))
    drained(driver, {"greet": lambda _job: None}, tracing=traces.provider)

    [span] = traces.spans
    assert attributes(span)["taskharbor.outcome"] == "lost"
    assert attributes(span)["error.type"] == "LeaseMismatch"
    assert span.status.status_code is StatusCode.ERROR


def test_an_unsampled_attempt_is_not_exported_and_stores_its_context() -> None:
    unsampled = Traces(ALWAYS_OFF)
    with Harbor("memory://", tracing=unsampled.provider) as harbor:
        handle = _failing_once(harbor).enqueue()
        harbor.worker().drain()

        assert unsampled.spans == []
        for entry in ("traceparent", ATTEMPT_TRACEPARENT):
            context = parse_traceparent(handle.job().metadata[entry])
            assert context is not None
            assert not context.flags & TraceFlags.SAMPLED


def test_a_disabled_sdk_stores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    disabled = Traces()
    with Harbor("memory://", tracing=disabled.provider) as harbor:
        handle = _failing_once(harbor).enqueue()
        harbor.worker().drain()

        assert handle.job().status is Status.SUCCEEDED
        assert handle.job().metadata == {}


@pytest.mark.parametrize(("cpu_time", "traced_attempts"), [(0.0, 2), (0.0035, 3), (9.0, 4)])
def test_more_attempts_in_a_second_than_cpu_time_allows_get_no_span(
    traces: Traces, monkeypatch: pytest.MonkeyPatch, cpu_time: float, traced_attempts: int
) -> None:
    readings = iter([1.0, *[1.0 + cpu_time] * 2])
    clocks = SimpleNamespace(monotonic=lambda: 5.0, time_ns=time.time_ns, process_time=lambda: next(readings))
    monkeypatch.setattr(spans, "time", clocks)
    monkeypatch.setattr(spans, "MIN_ATTEMPTS_PER_SECOND", 2)
    monkeypatch.setattr(spans, "MAX_ATTEMPTS_PER_SECOND", 1_000 if cpu_time < 1 else 4)
    driver, made_spans = MemoryDriver(), spans_for(traces.provider)

    def handle(_job: Job) -> None:
        with trace.get_tracer("shop", tracer_provider=traces.provider).start_as_current_span("inside"):
            assert trace.get_current_span().get_span_context().is_valid

    for _ in range(10):
        Client(driver).enqueue(JobRequest(type="greet"))
    drained(driver, {"greet": handle}, tracing=made_spans)

    assert len(traces.named("process default")) == traced_attempts
    assert all(span.parent is not None for span in traces.named("inside"))
    assert len(traces.named("inside")) == traced_attempts


class Broken(SpanProcessor):
    """A user's processor that raises."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002  of the protocol
        if span.name.startswith("enqueue"):
            raise RuntimeError("on start")

    def on_end(self, span: Any) -> None:  # noqa: ARG002  of the protocol
        raise RuntimeError("on end")


def test_an_error_in_the_sdk_is_logged_and_affects_no_job(
    traces: Traces, traced: Harbor, caplog: pytest.LogCaptureFixture
) -> None:
    traces.provider.add_span_processor(Broken())
    with caplog.at_level(logging.ERROR):
        handle = _failing_once(traced).enqueue()
        traced.worker().drain()

    assert handle.status() is Status.SUCCEEDED
    assert {record.message for record in caplog.records} == {"tracing failed; the job is not affected"}


def test_a_schedule_that_fires_makes_a_span_and_stores_its_context(traces: Traces) -> None:
    rig = ScheduleRig()
    rig.scheduler = Scheduler(rig.driver, tracing=traces.provider)
    rig.scheduler.put([hourly(queue="reports")])
    rig.reach(1)
    rig.scheduler.run_now("hourly", context=parse_traceparent(PARENT))

    fired, run = traces.spans
    assert (fired.name, fired.kind, fired.parent) == ("enqueue reports", SpanKind.PRODUCER, None)
    assert run.parent is not None
    assert f"{run.parent.trace_id:032x}" == TRACE
    jobs = made(rig.driver)
    assert [job.metadata["traceparent"] for job in jobs] == [traceparent(fired), traceparent(run)]
    assert jobs[0].metadata["fire_time"] == "2030-01-01T01:00:00+00:00"


def test_a_schedule_that_another_process_fires_makes_no_span(traces: Traces) -> None:
    rig = ScheduleRig()
    rig.scheduler.put([hourly()])

    def rival(verb: str, call: Callable[[], Any]) -> Any:
        if verb == "advance_schedule":
            rig.scheduler.tick()
        return call()

    rig.clock.advance(HOUR)
    Scheduler(meddled(rig.driver, rival), tracing=traces.provider).tick()

    assert len(made(rig.driver)) == 1
    assert traces.spans == []


def test_false_and_none_make_no_spans() -> None:
    assert spans_for(False) is None  # noqa: FBT003  the value of the option
    assert spans_for(None) is None


def _failing_once(harbor: Harbor) -> Any:
    @harbor.task
    def greet(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Retry("not yet", after=0)

    return greet


class RaisingProvider(TracerProvider):
    """A user's provider that has no tracer."""

    def get_tracer(self, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("no tracer")


class RaisingSpan(trace.NonRecordingSpan):
    """A span of a user's SDK whose context cannot be read."""

    def get_span_context(self) -> Any:
        raise RuntimeError("no context")


def test_a_span_that_raises_has_no_context_for_the_next_attempt() -> None:
    span = spans.AttemptSpan(RaisingSpan(trace.INVALID_SPAN_CONTEXT), 0)

    assert span.traceparent is None


async def _fail_async(_job: Job) -> None:
    raise ValueError("bad")


def _fail(_job: Job) -> None:
    raise ValueError("bad")


@pytest.mark.parametrize("fail", [_fail, _fail_async], ids=["sync", "async"])
def test_a_provider_that_raises_keeps_no_attempt_from_its_outcome(fail: Callable[[Job], Any]) -> None:
    driver = MemoryDriver()
    job_id = Client(driver).enqueue(JobRequest(type="fail", max_attempts=1)).id

    drained(driver, {"fail": fail}, tracing=RaisingProvider())

    job = driver.inspector.get([job_id])[job_id]
    assert (job.status, "ValueError" in (job.last_error or "")) == (Status.DEAD, True)
