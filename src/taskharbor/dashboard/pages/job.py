"""One job: its state and reason, its timeline and errors, its payload on demand, and what can be done with it."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Path
from fastapi.responses import Response

from taskharbor.api import actions
from taskharbor.api.problems import HttpProblem
from taskharbor.api.render import etag
from taskharbor.api.requests import GivenId, RequeueBody, RescheduleBody
from taskharbor.api.routing import check_scope, requires_scope
from taskharbor.api.store import JobSnapshot
from taskharbor.core.errors import JobNotFound
from taskharbor.core.ids import JobId, time_of
from taskharbor.core.model import Attempt, Job, JobSummary
from taskharbor.core.retention import RetentionOptions
from taskharbor.core.states import Status
from taskharbor.dashboard import forms
from taskharbor.dashboard.reasons import Reason, reason_of
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.dashboard.texts import STATES, span
from taskharbor.dashboard.tracebacks import TracebackPart, split_traceback
from taskharbor.diagnosis import Diagnosis, diagnose_all
from taskharbor.drivers.base import Inspector
from taskharbor.timeline import TimelineEntry, read_timeline
from taskharbor.views import actions as allowed_now
from taskharbor.views import iso_time, run_time, stored_value, wait_time

router: Final = ui_router()
JobParam = Annotated[GivenId, Path()]
MAX_SHOWN_CHARS: Final = 65_536
SECRET: Final = re.compile(r"password|passwd|secret|token|authorization|api_?key|card", re.IGNORECASE)
MASK: Final = "•••"
_TIMED_VERSION: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """An attempt with an error, and its traceback in parts."""

    attempt: Attempt
    title: str
    parts: tuple[TracebackPart, ...]
    fingerprint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStory:
    """What the page of a job shows."""

    job: JobSummary
    why: Diagnosis
    reason: Reason
    timeline: tuple[TimelineEntry, ...]
    failures: tuple[FailedAttempt, ...]
    wait: timedelta | None
    run: timedelta | None
    actions: tuple[str, ...]
    etag: str
    is_early: bool
    """Whether it waits for its due time, and can run now instead."""


@router.get("/jobs/{job_id}")
@requires_scope("jobs:read")
async def job(request: UiRequest, job_id: JobParam) -> Response:
    """Show a job."""
    try:
        story = await request.reads.fresh(partial(_story, JobId(job_id)))
    except JobNotFound as error:
        kept = request.api.store.backend.retention
        raise HttpProblem(HTTPStatus.NOT_FOUND, "not-found", _absent(job_id, kept)) from error
    return await request.page("job.html", story=story)


@router.get("/jobs/{job_id}/payload")
@requires_scope("payload:read")
async def payload(request: UiRequest, job_id: JobParam, show: str = "", download: str = "") -> Response:
    """Show the payload and the result of a job, and write that into the audit log."""
    snapshot = await request.api.store.get(JobId(job_id), with_payload=True)
    found = snapshot.job
    assert isinstance(found, Job)  # noqa: S101  it was read with its payload
    await request.api.store.record_audit(request.caller, "payload.read", str(job_id))
    if download:
        name = f"attachment; filename={job_id}.json"
        return Response(found.payload, media_type="application/octet-stream", headers={"Content-Disposition": name})
    values = {"Input": found.payload} | ({} if found.result is None else {"Result": found.result})
    texts = {name: _shown(data, reveal=bool(show)) for name, data in values.items()}
    return await request.page("job_payload.html", has_payload=True, job=found, texts=texts, is_revealed=bool(show))


@router.get("/jobs/{job_id}/duplicate")
@requires_scope("jobs:write")
async def ask_duplicate(request: UiRequest, job_id: JobParam) -> Response:
    """Show what a duplicate of the job would be."""
    snapshot = await request.api.store.get(JobId(job_id))
    return await request.page("job_duplicate.html", job=snapshot.job)


@router.post("/jobs/{job_id}/duplicate")
@requires_scope("jobs:write")
async def duplicate(request: UiRequest, job_id: JobParam) -> Response:
    """Create a job like this one, and show it."""
    made = await actions.duplicate_job(request, JobId(job_id))
    path = f"/jobs/{made.id}"
    return request.redirect(path, "This job is the duplicate.", undo=f"{path}/cancel")


@router.get("/jobs/{job_id}/{verb}")
@requires_scope("jobs:control")
async def ask(request: UiRequest, job_id: JobParam, verb: str, edit: str = "") -> Response:
    """Show what cancel, requeue or reschedule would do. With *edit*, the form has the present payload."""
    if verb not in {"cancel", "requeue", "reschedule"}:
        raise HttpProblem(HTTPStatus.NOT_FOUND, "not-found", "there is no such page")
    snapshot = await request.api.store.get(JobId(job_id), with_payload=bool(edit))
    text = await _editable(request, snapshot.job) if edit else ""
    is_allowed = verb in allowed_now(snapshot.job)
    return await request.page(
        "job_action.html",
        has_payload=bool(text),
        job=snapshot.job,
        verb=verb,
        is_allowed=is_allowed,
        etag=etag(snapshot.job),
        payload=text,
    )


async def _editable(request: UiRequest, found: JobSummary) -> str:
    """Return the payload as JSON to edit, and write into the audit log that it was read."""
    check_scope(request, "jobs:write")
    check_scope(request, "payload:read")
    assert isinstance(found, Job)  # noqa: S101  it was read with its payload
    value = stored_value(found.payload)
    if _has_tags(value):
        forms.reject_form("the input has values that JSON cannot express, such as times or bytes: write all of it anew")
    await request.api.store.record_audit(request.caller, "payload.read", str(found.id))
    return json.dumps(value, indent=2, ensure_ascii=False)


def _has_tags(value: Any) -> bool:
    if isinstance(value, dict):
        return any(name.startswith("$") or _has_tags(each) for name, each in value.items())
    return isinstance(value, list) and any(map(_has_tags, value))


@router.post("/jobs/{job_id}/cancel")
@requires_scope("jobs:control")
async def cancel(request: UiRequest, job_id: JobParam) -> Response:
    """Cancel a job, or ask a running one to stop."""
    done = await _act(request, job_id, actions.cancel_job(request, JobId(job_id), if_match=_mark(request)))
    path = f"/jobs/{job_id}"
    if done.job.status is Status.CANCELED:
        return request.redirect(path, "The job is canceled.", undo=f"{path}/requeue")
    return request.redirect(path, "The job was asked to stop. Its handler decides when it does.")


@router.post("/jobs/{job_id}/requeue")
@requires_scope("jobs:control")
async def requeue(request: UiRequest, job_id: JobParam) -> Response:
    """Requeue a dead or canceled job."""
    given = {"reason": request.field("reason"), **_due(request)}
    given["budget"] = forms.whole_number(request.field("budget"), "attempts")
    if request.field("payload"):
        given["payload"] = forms.json_value(request.field("payload"), "input")
    body = forms.checked(RequeueBody, given)
    await _act(request, job_id, actions.requeue_job(request, JobId(job_id), body, if_match=_mark(request)))
    path = f"/jobs/{job_id}"
    return request.redirect(path, "The job is requeued.", undo=f"{path}/cancel")


@router.post("/jobs/{job_id}/reschedule")
@requires_scope("jobs:control")
async def reschedule(request: UiRequest, job_id: JobParam, at: str = "", now: str = "") -> Response:
    """Change the due time or the priority of a waiting job, or make it due *now*. *at* is the time of an undo."""
    before = (await request.api.store.get(JobId(job_id))).job
    priority = forms.whole_number(request.field("priority"), "priority")
    due = {"scheduled_for": at} if at else {"delay": 0.0} if now else _due(request)
    given = {**due, "priority": priority}
    if not any(each is not None for each in given.values()):
        forms.reject_form("give a delay or a priority")
    body = forms.checked(RescheduleBody, given)
    await _act(request, job_id, actions.reschedule_job(request, JobId(job_id), body, if_match=_mark(request)))
    path = f"/jobs/{job_id}"
    undo = f"{path}/reschedule?at={iso_time(before.scheduled_for)}" if priority is None else ""
    return request.redirect(path, "The job is rescheduled.", undo=undo)


def _absent(job_id: UUID, kept: RetentionOptions) -> str:
    """Return why there may be no job with this id."""
    made = f" The id was made at {iso_time(time_of(JobId(job_id)))}." if job_id.version == _TIMED_VERSION else ""
    dead = "until they are purged" if kept["keep_dead"] is None else f"for {span(kept['keep_dead'])}"
    return (
        f"no job has the id {job_id}: it never existed, or was removed.{made} Jobs that succeeded or were canceled are "
        f"kept for {span(kept['keep'])}, dead letters {dead}, as far as this server knows"
    )


def _mark(request: UiRequest) -> str | None:
    """Return the ETag of the form. Undo has none."""
    return request.field("etag") or None


async def _act(request: UiRequest, job_id: UUID, action: Awaitable[JobSnapshot]) -> JobSnapshot:
    """Await an action. If the job has changed since its form was made, say what it is now."""
    try:
        return await action
    except HttpProblem as error:
        if error.status_code != HTTPStatus.PRECONDITION_FAILED:
            raise
        now = (await request.api.store.get(JobId(job_id))).job
        state = f"{STATES[now.status].word}, attempt {now.attempt_count} of {now.max_attempts}"
        worker = f", on {now.worker_id}" if now.status is Status.PROCESSING else ""
        detail = f"since this form was made, the job has changed; it is now: {state}{worker}"
        raise HttpProblem(HTTPStatus.PRECONDITION_FAILED, error.code, detail) from error


def _story(job_id: JobId, inspector: Inspector) -> JobStory:
    found = inspector.summaries([job_id]).get(job_id)
    if found is None:
        raise JobNotFound(job_id)
    now, why = inspector.now(), diagnose_all(inspector, [found])[job_id]
    attempts = inspector.attempts([job_id])
    return JobStory(
        job=found,
        why=why,
        reason=reason_of(found, why),
        timeline=tuple(read_timeline(inspector, job_id)),
        failures=tuple(_failed(each) for each in reversed(attempts) if each.failure is not None and each.started_at),
        wait=None if found.status.is_waiting and found.scheduled_for > now else wait_time(found, now),
        run=run_time(found, now),
        actions=tuple(allowed_now(found)),
        etag=etag(found),
        is_early=found.scheduled_for > now and "reschedule" in allowed_now(found),
    )


def _failed(attempt: Attempt) -> FailedAttempt:
    failure = attempt.failure
    assert failure is not None  # noqa: S101  the caller selects those with one
    title = f"{failure.type}: {failure.message}" if failure.message else failure.type
    parts = tuple(split_traceback(failure.traceback))
    return FailedAttempt(attempt=attempt, title=title, parts=parts, fingerprint=failure.fingerprint or None)


def _shown(data: bytes, *, reveal: bool) -> tuple[str, bool]:
    """Return stored bytes as indented JSON, cut to a limit, and whether it was cut."""
    value = stored_value(data)
    text = json.dumps(value if reveal else _masked(value), indent=2, ensure_ascii=False)
    return text[:MAX_SHOWN_CHARS], len(text) > MAX_SHOWN_CHARS


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: MASK if SECRET.search(str(key)) else _masked(each) for key, each in value.items()}
    return [_masked(each) for each in value] if isinstance(value, list) else value


def _due(request: UiRequest) -> dict[str, Any]:
    delay = forms.duration(request.field("delay"), "due in")
    return {} if delay is None else {"delay": delay.total_seconds()}
