"""JSON responses, ETags, and the fast JSON writer for pages of jobs."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from fastapi.responses import Response
from pydantic_core import to_json

from taskharbor.api.problems import HttpProblem
from taskharbor.core.model import Job
from taskharbor.views import actions, error_view, iso_time, job_view, progress_view, run_time, seconds, wait_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from taskharbor.api.routing import ApiRequest
    from taskharbor.api.store import JobSnapshot
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary
    from taskharbor.core.results import Page
    from taskharbor.diagnosis import Diagnosis

_NULL: Final = "null"
_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def page_json(
    page: Page, *, following: str | None, now: datetime, root: str, whys: Mapping[JobId, Diagnosis] | None = None
) -> bytes:
    """Return a page of jobs without their payloads, and the cursor of the following page, as JSON.

    *whys* are the diagnoses of its jobs, if they are part of it.
    """
    jobs = page.jobs
    text, error = cache(_json), cache(lambda line: _json(error_view(line)))
    folder = _json(f"{root}/v1/jobs/")[:-1]
    listed = [
        _job(job, scalars, text=text, error=error, folder=folder)
        for job, scalars in zip(jobs, _scalar_values(jobs, now), strict=True)
    ]
    if whys is not None:
        listed = [f'{row[:-1]},"why":{_json(whys[job.id].view())}}}' for job, row in zip(jobs, listed, strict=True)]
    end = f'"next":{_json(following)},"looked_back_to":{_json(iso_time(page.looked_back_to))}'
    return f'{{"jobs":[{",".join(listed)}],{end}}}'.encode()


def _scalar_values(jobs: Sequence[JobSummary], now: datetime) -> Iterator[tuple[str, ...]]:
    """Encode the ids, times and durations of all *jobs* in one call; none of them contains a comma."""
    values: list[Any] = []
    for job in jobs:
        values += (job.id, seconds(job.timeout), wait_time(job, now).total_seconds(), seconds(run_time(job, now)))
        values += [at if at is None or at.tzinfo is UTC else at.astimezone(UTC) for at in _times(job)]
    written = iter(to_json(values).decode()[1:-1].split(","))
    return zip(*[written] * _SCALARS_PER_JOB, strict=False)  # without jobs, `written` has one empty string


_SCALARS_PER_JOB: Final = 11


def _times(job: JobSummary) -> tuple[datetime | None, ...]:
    return (
        job.created_at,
        job.scheduled_for,
        job.processing_started_at,
        job.completed_at,
        job.cancel_requested_at,
        job.lease_expires_at,
        job.dead_at,
    )


def _job(
    job: JobSummary,
    scalars: tuple[str, ...],
    *,
    text: Callable[[Any], str],
    error: Callable[[str | None], str],
    folder: str,
) -> str:
    job_id, timeout, wait, run, created, due, started, ended, asked, until, died = scalars
    own = folder + job_id[1:-1]
    lease = _NULL if until == _NULL else f'{{"worker":{text(job.worker_id)},"expires_at":{until}}}'
    dead = _NULL if died == _NULL else f'{{"reason":{text(job.dead_reason)},"at":{died}}}'
    metadata = _json(dict(job.metadata)) if job.metadata else "{}"
    progress = _NULL if job.progress is None else _json(progress_view(job))
    return (
        f'{{"id":{job_id},"type":{text(job.type)},"queue":{text(job.queue)},"status":{text(job.status)},'
        f'"attempt_count":{job.attempt_count},"max_attempts":{job.max_attempts},"life":{job.life},'
        f'"priority":{job.priority},"timeout":{timeout},'
        f'"created_at":{created},"scheduled_for":{due},"started_at":{started},"completed_at":{ended},'
        f'"cancel_requested_at":{asked},"wait_seconds":{wait},"run_seconds":{run},"progress":{progress},'
        f'"lease":{lease},"error":{error(job.last_error)},"dead":{dead},'
        f'"idempotency_key":{text(job.idempotency_key)},"metadata":{metadata},'
        f'"links":{{"self":{own}","attempts":{own}/attempts","timeline":{own}/timeline","why":{own}/why","events":{own}/events"}},'
        f'"actions":{text(tuple(actions(job)))}}}'
    )


def json_response(data: Any, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    return reply_bytes(json_bytes(data), status, headers)


def json_bytes(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def reply_bytes(body: bytes, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response whose *body* is already JSON."""
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


async def job_response(
    request: ApiRequest, snapshot: JobSnapshot, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with one job; it includes the payload if the caller may read payloads."""
    job = snapshot.job
    size = len(job.payload) + len(job.result or b"") if isinstance(job, Job) else 0
    body = await request.compute(size, _job_bytes, snapshot, with_payload=request.shows_payload, root=request.root)
    return reply_bytes(body, status, {"ETag": etag(job), **(headers or {})})


def _job_bytes(snapshot: JobSnapshot, *, with_payload: bool, root: str) -> bytes:
    return json_bytes(
        job_view(snapshot.job, now=snapshot.now, failure=snapshot.failure, with_payload=with_payload, root=root)
    )


def etag(job: JobSummary) -> str:
    """Return the ETag of a job. It changes with the fields that an operator bases decisions on.

    Heartbeats and progress do not change it; otherwise If-Match would never match on a running job.
    """
    fields = (
        job.life,
        job.status,
        job.attempt_count,
        job.max_attempts,
        job.priority,
        job.scheduled_for,
        job.cancel_requested_at,
    )
    return f'"{hashlib.sha256(repr(fields).encode()).hexdigest()[:16]}"'


def check_etag(wanted: str, job: JobSummary) -> None:
    """Reject a change if *wanted*, a value of an If-Match header, does not match the job's ETag."""
    if wanted.strip() == "*" or etag(job) in {each.strip() for each in wanted.split(",")}:
        return
    detail = "the job has changed since this ETag was read; read the job again"
    raise HttpProblem(HTTPStatus.PRECONDITION_FAILED, "stale-etag", detail, headers={"ETag": etag(job)})
