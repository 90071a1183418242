"""The OpenAPI document, its examples, and an HTML page that shows it without scripts or external resources."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, Response

from taskharbor import statistics, views
from taskharbor._version import __version__
from taskharbor.api.problems import MEDIA_TYPE, RETRY_AFTER_SECONDS
from taskharbor.api.responses import Problem
from taskharbor.api.routing import ANY_KEY, PUBLIC, ApiRequest, ApiRoute, requires_scope
from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId, Token
from taskharbor.core.log_lines import AttemptLines, LogLine
from taskharbor.core.model import Attempt, AttemptOutcome, Job, Schedule, WorkerRecord
from taskharbor.core.operations import Operation, OperationId, OperationKind, OperationOptions, OperationState
from taskharbor.core.results import DeadLetterGroup, JobFilter, QueueStats
from taskharbor.core.states import Event, Status
from taskharbor.core.statistics import HOUR, MINUTE, AppVersion, GroupBy, Metric, SeriesPoint, SeriesQuery
from taskharbor.diagnosis import Cause, Diagnosis
from taskharbor.timeline import Kind, TimelineEntry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastapi import FastAPI
    from pydantic import BaseModel

_NOON: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
_ID: Final = JobId(UUID("01890a5d-ac96-774b-bcce-b302099a8057"))
_FAILURE: Final = Failure(type="ValueError", message="no such user", fingerprint="5f2c0a9d1e7b4c38")
_JOB: Final = Job(
    id=_ID,
    type="email.send",
    queue="default",
    priority=0,
    payload=b'{"to":"ada@example.com"}',
    status=Status.PENDING,
    scheduled_for=_NOON,
    timeout=timedelta(seconds=30),
    created_at=_NOON,
    attempt_count=0,
    max_attempts=20,
    idempotency_key="welcome-7",
    metadata={"tenant": "acme"},
)
_COUNTS: Final = {Status.PENDING: 3, Status.PROCESSING: 1, Status.SUCCEEDED: 120, Status.DEAD: 2}

ID: Final = str(_ID)
NEW_JOB: Final[dict[str, Any]] = {
    "type": "email.send",
    "payload": {"to": "ada@example.com"},
    "timeout": 30,
    "idempotency_key": "welcome-7",
    "metadata": {"tenant": "acme"},
}
JOB: Final = views.job_view(_JOB, now=_NOON)
ATTEMPT: Final = views.attempt_view(
    Attempt(
        job_id=_ID,
        token=Token(UUID(int=7)),
        life=1,
        attempt=1,
        worker_id="web-1:4711:0a1b2c3d",
        started_at=_NOON,
        ended_at=_NOON + timedelta(seconds=2),
        event=Event.RETRY,
        status=Status.FAILED,
        outcome=AttemptOutcome.FAILED,
        failure=_FAILURE,
    )
)
TIMELINE: Final = [
    TimelineEntry(at=_NOON, kind=Kind.CREATED, life=1, by="ci", action="jobs.enqueue").view(),
    TimelineEntry(
        at=_NOON + timedelta(seconds=1),
        kind=Kind.ATTEMPT,
        life=1,
        attempt=1,
        worker="web-1:4711:0a1b2c3d",
        outcome="LOST",
        wait=timedelta(seconds=1),
        run=timedelta(seconds=30),
        ended_at=_NOON + timedelta(seconds=31),
    ).view(),
    TimelineEntry(
        at=_NOON + timedelta(seconds=44),
        kind=Kind.REFUSED,
        life=1,
        attempt=1,
        worker="web-1:4711:0a1b2c3d",
        action="ack",
    ).view(),
]
LOG: Final = views.log_view(
    AttemptLines(
        job_id=_ID,
        token=Token(UUID(int=7)),
        attempt=1,
        worker_id="web-1:4711:0a1b2c3d",
        dropped=0,
        lines=(LogLine(_NOON, "WARNING", "shop.mail", "no answer from mail.example; trying the next server"),),
        saved_at=_NOON + timedelta(seconds=2),
    )
)
WHY: Final = Diagnosis(
    job_id=_ID, status=Status.PENDING, cause=Cause.AHEAD, text="2 jobs of its queue come first", ahead=2
).view()
GROUP: Final = views.group_view(
    DeadLetterGroup(
        queue="default",
        type="email.send",
        fingerprint=_FAILURE.fingerprint,
        count=2,
        error=str(_FAILURE),
        first_at=_NOON,
        last_at=_NOON + timedelta(hours=1),
        sample=_ID,
    )
) | {"hours": [{"hour": views.iso_time(_NOON), "count": 2}], "first_version": "4f2c"}
OPERATION: Final = views.operation_view(
    Operation(
        id=OperationId(UUID("0a1b2c3d-1111-4222-8333-444455556666")),
        kind=OperationKind.REQUEUE,
        by="key:1a2b3c4d ops",
        reason="the mail server is back",
        filter=JobFilter(type="email.send", statuses=frozenset({Status.DEAD})),
        options=OperationOptions(rate=10),
        matched=38,
        is_capped=False,
        digest="",
        state=OperationState.RUNNING,
        created_at=_NOON,
        next_at=_NOON + timedelta(seconds=6),
        started_at=_NOON + timedelta(seconds=5),
        step=1,
        done=10,
    )
)
QUEUE: Final = views.queue_view(
    QueueStats(name="default", counts=_COUNTS, oldest_due=_NOON, paused_at=None, paused_by=None),
    now=_NOON + timedelta(seconds=5),
) | {
    "workers": 2,
    "capacity": 32,
    "arrived_per_minute": 410.0,
    "ended_per_minute": 640.0,
    "drained_in_seconds": 0.8,
    "counted_at": views.iso_time(_NOON + timedelta(seconds=2)),
}
SCALING: Final = {
    "queue": "default",
    "backlog": 3,
    "running": 1,
    "oldest_age_seconds": 5.0,
    "is_paused": False,
    "workers": 1,
    "suggested_workers": 1,
}
NEW_SCHEDULE: Final = {"cron": "0 2 * * *", "timezone": "Europe/Paris", "type": "reports.nightly"}
SCHEDULE: Final = views.schedule_view(
    Schedule(
        name="nightly",
        cron="0 2 * * *",
        timezone="Europe/Paris",
        type="reports.nightly",
        queue="default",
        payload=b"null",
        options={"missed": "once", "overlap": "allow"},
        next_at=_NOON + timedelta(hours=13),
        declared_at=_NOON,
    ),
    declared=["nightly"],
)
WORKER: Final = views.worker_view(
    WorkerRecord(
        id="web-1:4711:0a1b2c3d",
        host="web-1",
        pid=4711,
        queues=("default",),
        types=("email.send",),
        concurrency=16,
        schedules=("nightly",),
        started_at=_NOON,
        seen_at=_NOON,
        busy_slots=3,
        version="4f2c",
        library=__version__,
    )
) | {"state": "live", "is_alive": True}
WORKER_DETAIL: Final = WORKER | {
    "held": [],
    "holds_more": False,
    "lost": [
        {
            "job_id": ID,
            "type": "email.send",
            "queue": "default",
            "status": "SUCCEEDED",
            "attempt": 1,
            "started_at": views.iso_time(_NOON),
            "lost_at": views.iso_time(_NOON + timedelta(seconds=31)),
            "next": {
                "worker": "web-2:4711:0a1b2c3d",
                "started_at": views.iso_time(_NOON + timedelta(seconds=32)),
                "wait_seconds": 1.0,
                "outcome": "SUCCEEDED",
            },
        }
    ],
}
SERIES: Final = statistics.series_view(
    SeriesQuery(metric=Metric.ENDED, by=GroupBy.STATUS, since=_NOON - HOUR, until=_NOON),
    [SeriesPoint(_NOON - MINUTE, "SUCCEEDED", 120)],
)
TYPE: Final = {"type": "email.send", "workers": 2, "attempts_last_hour": 1_204}
VERSION: Final = statistics.version_view(AppVersion("4f2c", _NOON - HOUR, _NOON))
STATS: Final = {
    "now": views.iso_time(_NOON),
    "counts": QUEUE["counts"],
    "queues": 1,
    "paused_queues": [],
    "workers_alive": 1,
    "oldest_age_seconds": 5.0,
    "finished_last_hour": {"SUCCEEDED": 120, "DEAD": 2, "CANCELED": 0},
}
_DESCRIPTIONS: Final = {
    400: "The body is not strict JSON.",
    401: "The key is missing or invalid.",
    403: "The key lacks the scope, or the request is cross-origin.",
    404: "Not found.",
    409: "The job's state does not allow this. The problem has the state and the allowed actions.",
    412: "The job has changed since the ETag of If-Match was read.",
    413: "The body is too large; the rest of it was not read.",
    415: "The body is not declared as JSON by its Content-Type.",
    422: (
        "A field is invalid, no task of the app has the type, or the idempotency key was used with another body. "
        "The problem names the field."
    ),
    429: "Too many waits and streams are open.",
    503: "The store is unavailable, or too many requests are waiting for it.",
}
_WITH_RETRY: Final = (429, 503)
COMMON_PROBLEMS: Final = (401, 403, 503)
BODY_PROBLEMS: Final = (400, 413, 415, 422)
JSON: Final = "application/json"

IF_MATCH: Final = {
    "name": "If-Match",
    "in": "header",
    "description": "An ETag. The request is rejected if the job has changed since.",
    "schema": {"type": "string"},
    "example": '"0123456789abcdef"',
}
KEY_PATTERN: Final = "^[!-~]{1,255}$"
IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Makes this request safe to repeat: a repeat returns the job that the first request created.",
    "schema": {"type": "string", "pattern": KEY_PATTERN},
    "example": "welcome-7",
}
TRACE_CONTEXT: Final = (
    {
        "name": "traceparent",
        "in": "header",
        "description": "The W3C trace context, which is stored with the job. It is ignored if it is malformed.",
        "schema": {"type": "string"},
        "example": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    },
    {
        "name": "tracestate",
        "in": "header",
        "description": "The state of tracing systems, which is stored with a valid traceparent.",
        "schema": {"type": "string"},
        "example": "vendor=t61rcWkgMzE",
    },
)
router: Final = APIRouter(route_class=ApiRoute, include_in_schema=False)

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE: Final = "body{font:16px/1.5 sans-serif;margin:2rem auto;max-width:60rem}td{padding:.2rem 1rem .2rem 0}"
_SUMMARY: Final = "Durable background jobs, stored in your own database."


def describe(
    answers: Mapping[int, tuple[type[BaseModel], Any]],
    *problems: int,
    body: Any = None,
    headers: tuple[Mapping[str, Any], ...] = (),
) -> dict[str, Any]:
    """Return keyword arguments for a route decorator: *answers* by status, with examples, and an example *body*."""
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": shape, "description": _response_text(shape), "content": {JSON: {"example": example}}}
        for status, (shape, example) in answers.items()
    }
    responses |= {status: _problem(status) for status in sorted({*problems, *COMMON_PROBLEMS})}
    extra: dict[str, Any] = {}
    if body is not None:
        extra["requestBody"] = {"content": {JSON: {"example": body}}}
    if headers:
        extra["parameters"] = list(headers)
    return {"responses": responses, "openapi_extra": extra, "response_class": JSONResponse, "response_model": None}


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    response: dict[str, Any] = {"description": _DESCRIPTIONS[status], "content": {MEDIA_TYPE: {"schema": schema}}}
    if status in _WITH_RETRY:
        seconds = {"schema": {"type": "integer"}, "example": RETRY_AFTER_SECONDS}
        response["headers"] = {"Retry-After": {"description": "Seconds to wait before retrying."} | seconds}
    return response


def _response_text(shape: type[BaseModel]) -> str:
    return shape.__doc__ or shape.__name__


@router.get("/openapi.json")
@requires_scope(PUBLIC)
async def openapi(request: ApiRequest) -> Response:
    document = dict(request.app.openapi())
    if request.root:
        document["servers"] = [{"url": request.root}]
    return JSONResponse(document)


@router.get("/docs")
@requires_scope(PUBLIC)
async def docs(request: ApiRequest) -> Response:
    rows = "".join(_rows(request.app.openapi()))
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>TaskHarbor API</title><style>{_STYLE}</style>"
        f"<h1>TaskHarbor API</h1><p>{_SUMMARY} <a href=openapi.json>The OpenAPI document</a></p>"
        f"<table>{rows}</table></html>"
    )
    return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"})


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of *app*. It is built once and cached."""
    if app.openapi_schema is None:
        made = get_openapi(
            title="TaskHarbor", version=__version__, summary=_SUMMARY, routes=app.routes, openapi_version="3.1.0"
        )
        schemas = made["components"]["schemas"]
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schemas["Problem"].pop("$defs", {})
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
        _complete(app, made["paths"])
        app.openapi_schema = made
    return app.openapi_schema


def _complete(app: FastAPI, paths: dict[str, Any]) -> None:
    """Add the required scope to each operation, and restore the nulls that FastAPI removed from the examples."""
    for route in routes_of(app):
        for method in (route.methods or ()) if route.include_in_schema else ():
            operation = paths[route.path_format][method.lower()]
            operation["security"] = (
                [] if route.needs == PUBLIC else [{"key": [] if route.needs == ANY_KEY else [route.needs]}]
            )
            for status, response in route.responses.items():
                for media, content in response.get("content", {}).items():
                    operation["responses"][str(status)]["content"][media] |= content
            if route.needs == PUBLIC:
                for status in ("401", "403"):
                    operation["responses"].pop(status, None)


def routes_of(app: FastAPI) -> list[ApiRoute]:
    """Return every API route of *app*."""
    return [route for route in app.routes if isinstance(route, ApiRoute)]


def _rows(schema: dict[str, Any]) -> Iterator[str]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            scope = next((scope for scopes in operation["security"] for scope in scopes["key"]), "")
            cells = (method.upper(), path, operation["summary"], scope)
            yield f"<tr>{''.join(f'<td>{escape(cell)}' for cell in cells)}"
