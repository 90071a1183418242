"""Answers in JSON, and what a job's answer carries in its headers."""

from __future__ import annotations

import hashlib
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi.responses import Response

from taskharbor.api.problems import HttpProblem
from taskharbor.core.model import Job
from taskharbor.views import job_view

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.api.backend import JobSnapshot
    from taskharbor.api.routing import ApiRequest
    from taskharbor.core.model import JobSummary


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
