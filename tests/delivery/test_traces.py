"""One job from HTTP through PostgreSQL and SQS to its retry on another worker, span by span."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import psycopg
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from taskharbor import Context, DueTaskEnqueuer, Harbor, Retry, SqsTransport, Status
from taskharbor.api import create_app
from taskharbor.cli.sqs import queue_shapes
from taskharbor.core.hooks import MessagesReceived
from taskharbor.core.ids import JobId
from taskharbor.core.results import JobFilter
from taskharbor.observability.tracing import trace_id_of
from taskharbor.runtime import ThreadRuntime
from taskharbor.schedules import ScheduleSpec
from tests.support.postgres import emptied
from tests.support.traces import Traces, is_child, links, traceparent
from tests.support.transport_subjects import REGION
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from taskharbor.core.hooks import HookEvent
    from taskharbor.core.model import Job
    from taskharbor.testing.sqs import Endpoint

CALLER = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"traceparent": f"00-{CALLER}-b7ad6b7169203331-01", "tracestate": "vendor=t61rcWkgMzE"}


def shop(url: str, traces: Traces) -> Harbor:
    """A harbor as another process would have it: with a store and a tracer provider of its own."""
    harbor = Harbor(url, tracing=traces.provider)

    @harbor.task(queue="mail")
    async def welcome(ctx: Context, name: str) -> str:
        with trace.get_tracer("shop", tracer_provider=traces.provider).start_as_current_span("render"):
            if ctx.attempt == 1:
                raise Retry("the mail server is full", after=timedelta(hours=1))
        return name

    return harbor


def post(harbor: Harbor, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(harbor, needs_keys=False))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client:
            return await client.post("/v1/jobs", json=body, headers=headers)

    return asyncio.run(send())


def test_a_job_is_traced_from_http_over_sqs_to_its_retry(endpoint: Endpoint) -> None:
    url, at_api, at_first, at_second = emptied(), Traces(), Traces(), Traces()
    transport = SqsTransport(endpoint_url=endpoint.url, region=REGION)
    transport.ensure_queues(queue_shapes(["mail"]))
    with shop(url, at_api) as api, shop(url, at_first) as first, shop(url, at_second) as second:
        enqueuer = DueTaskEnqueuer(ThreadRuntime(sync_threads=1), api.driver, transport, queues=["mail"])
        enqueuer.start()
        response = post(api, {"type": "welcome", "payload": {"name": "Ada"}, "queue": "mail"}, HEADERS)
        job_id = JobId(UUID(response.json()["id"]))
        handle = api.handle(job_id)

        messages: list[tuple[str, int]] = []
        hooks = [lambda event: messages.extend(received(event))]
        worker = first.worker(transport=transport, receive_wait=0.1, name="first", janitor=False, hooks=hooks)
        worker.start()
        wait_until(lambda: len(at_first.spans) == 2)
        worker.stop()
        api.driver.reschedule([job_id], scheduled_for=api.driver.inspector.now())
        worker = second.worker(transport=transport, receive_wait=0.1, name="second", janitor=False, hooks=hooks)
        worker.start()
        wait_until(lambda: handle.status() is Status.SUCCEEDED and len(at_second.spans) == 2)
        worker.stop()
        enqueuer.stop()
        job = handle.job()
    transport.close()

    assert messages == [("mail", 1)] * 2  # each attempt came with a message, and not from a poll of the store
    [sent], [failed, first_render], [succeeded, second_render] = at_api.spans, at_first.spans, at_second.spans
    check_enqueue(sent, job, ("127.0.0.1", api.driver.server_address[1]))  # type: ignore[attr-defined]
    check_failure(failed, job, sent)
    check_retry(succeeded, sent, failed)
    assert first_render.name == second_render.name == "render"
    assert is_child(first_render, of=failed)
    assert is_child(second_render, of=succeeded)
    assert len({traceparent(span)[:35] for span in (sent, failed, succeeded)}) == 3


def received(event: HookEvent) -> list[tuple[str, int]]:
    return [(event.queue, event.count)] if isinstance(event, MessagesReceived) else []


def test_a_fired_schedule_is_traced_over_sqs_to_its_attempt(endpoint: Endpoint) -> None:
    url, at_scheduler, at_worker = emptied(), Traces(), Traces()
    transport = SqsTransport(endpoint_url=endpoint.url, region=REGION)
    transport.ensure_queues(queue_shapes(["mail"]))
    with shop(url, at_scheduler) as scheduling, shop(url, at_worker) as working:
        enqueuer = DueTaskEnqueuer(ThreadRuntime(sync_threads=1), scheduling.driver, transport, queues=["mail"])
        enqueuer.start()
        scheduler = scheduling.scheduler()
        spec = ScheduleSpec(name="nightly", cron="0 2 * * *", type="welcome", queue="mail", payload={"name": "Ada"})
        scheduler.put([spec])
        with psycopg.connect(url) as db:
            db.execute("UPDATE th_schedules SET next_at = now() - interval '1 minute'")
        scheduler.tick()

        worker = working.worker(transport=transport, receive_wait=0.1, name="first", janitor=False)
        worker.start()
        wait_until(lambda: len(at_worker.spans) == 2)
        worker.stop()
        enqueuer.stop()
        [job] = scheduling.driver.inspector.find(JobFilter(schedule="nightly"), limit=2).jobs
    transport.close()

    [fired], [attempt, render] = at_scheduler.spans, at_worker.spans
    assert (fired.name, fired.kind, fired.parent) == ("enqueue mail", SpanKind.PRODUCER, None)
    assert (attempt.name, attempt.kind, attempt.parent) == ("process mail", SpanKind.CONSUMER, None)
    assert links(attempt) == [traceparent(fired)]
    assert (attempt.attributes or {})["messaging.message.id"] == str(job.id)
    assert is_child(render, of=attempt)


def check_enqueue(sent: ReadableSpan, job: Job, server: tuple[str, int]) -> None:
    """The span of the API is a child of the caller's, and its context is stored."""
    assert (sent.name, sent.kind, sent.status.status_code) == ("enqueue mail", SpanKind.PRODUCER, StatusCode.UNSET)
    assert sent.parent is not None
    assert sent.parent.is_remote
    assert f"00-{sent.parent.trace_id:032x}-{sent.parent.span_id:016x}-01" == HEADERS["traceparent"]
    assert sent.context.trace_state.to_header() == HEADERS["tracestate"]
    assert dict(sent.attributes or {}) == {
        "messaging.system": "taskharbor",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(job.id),
        "server.address": server[0],
        "server.port": server[1],
    }
    assert job.metadata["traceparent"] == traceparent(sent)
    assert job.metadata["tracestate"] == HEADERS["tracestate"]
    assert trace_id_of(job) == CALLER


def check_failure(failed: ReadableSpan, job: Job, sent: ReadableSpan) -> None:
    """The first attempt has a trace of its own, with a link to the enqueue, and the error."""
    assert (failed.name, failed.kind, failed.parent) == ("process mail", SpanKind.CONSUMER, None)
    assert links(failed) == [traceparent(sent)]
    assert failed.links[0].context.trace_state.to_header() == HEADERS["tracestate"]
    attributes = dict(failed.attributes or {})
    wait = attributes.pop("taskharbor.queue.wait_seconds")
    assert isinstance(wait, float)
    assert 0 <= wait < 60
    assert attributes == {
        "messaging.system": "taskharbor",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(job.id),
        "messaging.client.id": "first",
        "taskharbor.task.name": "welcome",
        "taskharbor.attempt": 1,
        "taskharbor.max_attempts": 20,
        "taskharbor.outcome": "retry",
        "taskharbor.status": "ENQUEUED",
        "error.type": "taskharbor.Retry",
    }
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "the mail server is full")
    [event] = failed.events
    assert event.name == "exception"
    assert (event.attributes or {})["exception.type"] == "taskharbor.Retry"
    assert (event.attributes or {})["exception.message"] == "the mail server is full"
    assert "in welcome" in str((event.attributes or {})["exception.stacktrace"])


def check_retry(succeeded: ReadableSpan, sent: ReadableSpan, failed: ReadableSpan) -> None:
    """The retry on another worker links to the enqueue and to the attempt before."""
    assert (succeeded.name, succeeded.kind, succeeded.parent) == ("process mail", SpanKind.CONSUMER, None)
    assert links(succeeded) == [traceparent(sent), traceparent(failed)]
    assert dict(succeeded.links[1].attributes or {}) == {"taskharbor.link": "previous attempt"}
    assert succeeded.status.status_code is StatusCode.UNSET
    assert not succeeded.events
    attributes = dict(succeeded.attributes or {})
    assert (attributes["taskharbor.attempt"], attributes["messaging.client.id"]) == (2, "second")
    assert "error.type" not in attributes
