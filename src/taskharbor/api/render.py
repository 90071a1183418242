"""Answers in JSON, and what a job's answer carries in its headers."""

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
from taskharbor.views import actions, error_view, job_view, progress_view, run_time, seconds, wait_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from taskharbor.api.routing import ApiRequest
    from taskharbor.api.store import JobSnapshot
    from taskharbor.core.model import JobSummary

_NULL: Final = "null"
_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def page_json(jobs: Sequence[JobSummary], *, following: str | None, now: datetime, root: str) -> bytes:
    """Return *jobs*, without their payloads, and the cursor of the page that follows."""
    text, error = cache(_json), cache(lambda line: _json(error_view(line)))
    folder = _json(f"{root}/v1/jobs/")[:-1]
    listed = [
        _job(job, plain, text=text, error=error, folder=folder)
        for job, plain in zip(jobs, _plain_values(jobs, now), strict=True)
    ]
    return f'{{"jobs":[{",".join(listed)}],"next":{_json(following)}}}'.encode()


def _plain_values(jobs: Sequence[JobSummary], now: datetime) -> Iterator[tuple[str, ...]]:
    """Write ids, times and spans of all *jobs* at once: none of them has a comma in it."""
    values: list[Any] = []
    for job in jobs:
        values += (job.id, seconds(job.timeout), wait_time(job, now).total_seconds(), seconds(run_time(job, now)))
        values += [at if at is None or at.tzinfo is UTC else at.astimezone(UTC) for at in _times(job)]
    written = iter(to_json(values).decode()[1:-1].split(","))
    return zip(*[written] * _PLAIN, strict=False)  # of no jobs there is one empty text


_PLAIN: Final = 11
"""How many values of a job that are."""


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
    plain: tuple[str, ...],
    *,
    text: Callable[[Any], str],
    error: Callable[[str | None], str],
    folder: str,
) -> str:
    job_id, timeout, wait, run, created, due, started, ended, asked, until, died = plain
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
        f'"links":{{"self":{own}","attempts":{own}/attempts","why":{own}/why","events":{own}/events"}},'
        f'"actions":{text(tuple(actions(job)))}}}'
    )


def json_response(data: Any, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    return reply_bytes(json_bytes(data), status, headers)


def json_bytes(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def reply_bytes(body: bytes, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with what is JSON already."""
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


async def job_response(
    request: ApiRequest, seen: JobSnapshot, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with one job; its payload is there for those who may see it."""
    job = seen.job
    size = len(job.payload) + len(job.result or b"") if isinstance(job, Job) else 0
    body = await request.compute(size, _job_bytes, seen, with_payload=request.shows_payload, root=request.root)
    return reply_bytes(body, status, {"ETag": etag(job), **(headers or {})})


def _job_bytes(seen: JobSnapshot, *, with_payload: bool, root: str) -> bytes:
    return json_bytes(job_view(seen.job, now=seen.now, failure=seen.failure, with_payload=with_payload, root=root))


def etag(job: JobSummary) -> str:
    """Return what stands for the job's state: it changes with whatever a person decides by.

    A heartbeat and a handler's progress leave it as it is, or nobody could ever act on a running job.
    """
    facts = (
        job.life,
        job.status,
        job.attempt_count,
        job.max_attempts,
        job.priority,
        job.scheduled_for,
        job.cancel_requested_at,
    )
    return f'"{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"'


def check_if_match(request: ApiRequest, job: JobSummary) -> None:
    """Refuse a call whose If-Match names another state of the job."""
    wanted = request.headers.get("if-match")
    if wanted is None or wanted.strip() == "*" or etag(job) in {each.strip() for each in wanted.split(",")}:
        return
    detail = "the job has changed since: read it again, and decide anew"
    raise HttpProblem(HTTPStatus.PRECONDITION_FAILED, "stale-etag", detail, headers={"ETag": etag(job)})
