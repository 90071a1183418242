"""What operators do to jobs, queues, schedules and operations, each with its scope, precondition and audit entry.

The endpoints of the API and the pages of the dashboard call these functions, so that both have the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

from taskharbor import operations
from taskharbor.api.problems import field_problem, not_found
from taskharbor.api.render import check_etag
from taskharbor.api.requests import NewKeyBody, RequeueBody, RescheduleBody, to_timedelta
from taskharbor.api.routing import ApiRequest, check_scope
from taskharbor.api.store import ApiBackend, JobSnapshot, StoreGateway
from taskharbor.api_keys import ADMIN, IssuedKey, issue_key
from taskharbor.cancellation import cancel_jobs
from taskharbor.core.errors import IllegalTransition, JobNotFound, ScheduleNotFound
from taskharbor.core.ids import JobId, new_token
from taskharbor.core.model import ApiKey, Job, NewJob, payload_context
from taskharbor.core.operations import Operation, OperationId, OperationKind
from taskharbor.core.request import JobRequest
from taskharbor.core.results import Enqueued, Transitioned
from taskharbor.core.trace_context import TRACEPARENT, TRACESTATE
from taskharbor.drivers.base import Driver
from taskharbor.operations import OperationRequest, Preview
from taskharbor.schedules import Scheduler
from taskharbor.task_requests import payload_for
from taskharbor.views import iso_time


async def cancel_job(request: ApiRequest, job_id: JobId, *, if_match: str | None = None) -> JobSnapshot:
    """Cancel a job. A running job is asked to stop. *if_match* is the ETag that the job must still have."""
    check_scope(request, "jobs:control")
    await _check_job(request, job_id, if_match)
    return await _transition(request, job_id, "jobs.cancel", partial(_cancel, request.api.store.backend, job_id))


def _cancel(backend: ApiBackend, job_id: JobId) -> list[Transitioned | IllegalTransition | JobNotFound]:
    return cancel_jobs(backend.driver, [job_id], backend.client.call_hooks)


async def requeue_job(
    request: ApiRequest, job_id: JobId, body: RequeueBody, *, if_match: str | None = None
) -> JobSnapshot:
    """Requeue a dead or canceled job. A payload in *body* also requires the scope jobs:write."""
    check_scope(request, "jobs:control")
    _check_one_time(body)
    await _check_job(request, job_id, if_match)
    payload = await _payload(request, job_id, body) if "payload" in body.model_fields_set else None
    change = partial(
        _driver(request).requeue,
        [job_id],
        token=new_token(),
        budget=body.budget,
        by=request.caller.name,
        reason=body.reason,
        scheduled_for=body.scheduled_for,
        delay=to_timedelta(body.delay),
        payload=payload,
    )
    detail = {} if payload is None else {"payload": "replaced"}
    return await _transition(request, job_id, "jobs.requeue", change, **detail)


async def reschedule_job(
    request: ApiRequest, job_id: JobId, body: RescheduleBody, *, if_match: str | None = None
) -> JobSnapshot:
    """Change the due time or the priority of a waiting job."""
    check_scope(request, "jobs:control")
    _check_one_time(body)
    await _check_job(request, job_id, if_match)
    change = partial(
        _driver(request).reschedule,
        [job_id],
        scheduled_for=body.scheduled_for,
        delay=to_timedelta(body.delay),
        priority=body.priority,
    )
    given = {"scheduled_for": iso_time(body.scheduled_for), "delay": body.delay, "priority": body.priority}
    detail = {name: str(value) for name, value in given.items() if value is not None}
    return await _transition(request, job_id, "jobs.reschedule", change, **detail)


async def duplicate_job(request: ApiRequest, job_id: JobId) -> Enqueued:
    """Create a job with the type, payload and options of another one, due now.

    The idempotency key is not copied, since it would name the first job, and neither is metadata that says what created
    it.
    """
    check_scope(request, "jobs:write")
    store = request.api.store
    found = (await store.get(job_id, with_payload=True)).job
    assert isinstance(found, Job)  # noqa: S101  it was read with its payload
    new = await request.compute(len(found.payload), _copy, store.backend, found)
    [enqueued] = await store.backend.client.astore([new])
    assert isinstance(enqueued, Enqueued)  # noqa: S101  without a key there is no conflict
    detail = {"type": new.type, "queue": new.queue, "copy_of": str(job_id)}
    await store.record_audit(request.caller, "jobs.enqueue", str(enqueued.id), **detail)
    return enqueued


def _copy(backend: ApiBackend, found: Job) -> NewJob:
    payload = backend.codec.decode(found.payload, context=payload_context(found.id, found.type))
    metadata = {name: value for name, value in found.metadata.items() if name not in _OF_ITS_ORIGIN}
    return backend.client.prepare(
        JobRequest(
            type=found.type,
            payload=payload,
            queue=found.queue,
            timeout=found.timeout,
            priority=found.priority,
            # A requeue has raised the maximum by what was used before.
            max_attempts=found.max_attempts if found.life == 1 else None,
            metadata=metadata,
        )
    )


_OF_ITS_ORIGIN: Final = frozenset({"schedule", "fire_time", TRACEPARENT, TRACESTATE})


async def pause_queue(request: ApiRequest, name: str, *, reason: str = "", lasts: timedelta | None = None) -> bool:
    """Pause a queue until it is resumed, or for *lasts*. Return whether it was not paused before."""
    check_scope(request, "queues:control")
    store = request.api.store
    pause = _driver(request).control.pause
    [is_new] = await store.call(pause, [name], by=request.caller.name, reason=reason, lasts=lasts)
    if is_new:
        detail = {"why": reason, "for": "" if lasts is None else f"{lasts.total_seconds():g} s"}
        known = {key: value for key, value in detail.items() if value}
        await store.record_audit(request.caller, "queues.pause", name, **known)
    return is_new


async def resume_queue(request: ApiRequest, name: str) -> bool:
    """Resume a queue, and return whether it was paused before."""
    check_scope(request, "queues:control")
    store = request.api.store
    [is_new] = await store.call(_driver(request).control.resume, [name])
    if is_new:
        await store.record_audit(request.caller, "queues.resume", name)
    return is_new


async def pause_schedule(request: ApiRequest, name: str) -> bool:
    """Pause a schedule, and return whether it exists and was not paused before."""
    check_scope(request, "schedules:write")
    store = request.api.store
    [is_new] = await store.call(_driver(request).control.pause_schedules, [name])
    if is_new:
        await store.record_audit(request.caller, "schedules.pause", name)
    return is_new


async def resume_schedule(request: ApiRequest, name: str) -> bool:
    """Resume a schedule, and return whether it exists and was paused before."""
    check_scope(request, "schedules:write")
    store = request.api.store
    [is_new] = await store.call(_driver(request).control.resume_schedules, [name])
    if is_new:
        await store.record_audit(request.caller, "schedules.resume", name)
    return is_new


async def delete_schedule(request: ApiRequest, name: str) -> None:
    """Remove a schedule, or raise `ScheduleNotFound`."""
    check_scope(request, "schedules:write")
    store = request.api.store
    [existed] = await store.call(_driver(request).control.delete_schedules, [name])
    if not existed:
        raise ScheduleNotFound(name)
    await store.record_audit(request.caller, "schedules.delete", name)


async def run_schedule(request: ApiRequest, name: str, *, idempotency_key: str | None = None) -> Enqueued:
    """Create a job of a schedule now, or raise `ScheduleNotFound`."""
    check_scope(request, "schedules:write")
    store = request.api.store
    run_now = scheduler(store).run_now
    enqueued = await store.call(run_now, name, idempotency_key=idempotency_key, context=request.trace_context)
    if not enqueued.existed:
        await store.record_audit(request.caller, "schedules.run", name, job=str(enqueued.id))
    return enqueued


async def create_key(request: ApiRequest, body: NewKeyBody) -> IssuedKey:
    """Create an API key. Only the result has its text."""
    check_scope(request, ADMIN)
    store = request.api.store
    issued = await store.call(_new_key, _driver(request), body)
    scopes = " ".join(issued.key.scopes)
    await store.record_audit(request.caller, "keys.create", issued.key.id, name=body.name, scopes=scopes)
    return issued


async def revoke_key(request: ApiRequest, key_id: str) -> ApiKey:
    """Revoke a key and its sessions, and return it. Raise a problem if there is none."""
    check_scope(request, ADMIN)
    store = request.api.store
    [is_new] = await store.call(_driver(request).control.revoke_keys, [key_id])
    found = (await store.call(_driver(request).inspector.keys, [key_id])).get(key_id)
    if found is None:
        raise not_found("key", key_id)
    if is_new:
        await store.record_audit(request.caller, "keys.revoke", key_id)
    return found


def _new_key(driver: Driver, body: NewKeyBody) -> IssuedKey:
    now = driver.inspector.now()
    expires_at = None if body.expires_in is None else now + timedelta(seconds=body.expires_in)
    issued = issue_key(body.name, body.scopes, now=now, expires_at=expires_at)
    driver.control.add_keys([issued.key])
    return issued


async def preview_operation(request: ApiRequest, wanted: OperationRequest) -> Preview:
    """Count the jobs that a bulk operation would change. A purge requires the scope admin."""
    _check_operation(request, wanted)
    return await request.api.store.call(operations.preview, _driver(request), wanted)


async def create_operation(
    request: ApiRequest, wanted: OperationRequest, found: Preview, *, starts_in: timedelta
) -> tuple[Operation, bool]:
    """Store a bulk operation, and return it and whether it is new."""
    _check_operation(request, wanted)
    return await request.api.store.call(operations.create, _driver(request), wanted, found, starts_in=starts_in)


async def stop_operation(request: ApiRequest, operation_id: OperationId) -> Operation:
    """Stop a bulk operation. One that has ended stays as it is."""
    check_scope(request, "jobs:control")
    return await request.api.store.call(operations.stop, _driver(request), operation_id, by=request.caller.name)


def scheduler(store: StoreGateway) -> Scheduler:
    backend = store.backend
    return Scheduler(backend.driver, codec=backend.codec, hooks=backend.client.hooks, tracing=backend.client.spans)


def _check_operation(request: ApiRequest, wanted: OperationRequest) -> None:
    check_scope(request, ADMIN if wanted.kind is OperationKind.PURGE else "jobs:control")


def _driver(request: ApiRequest) -> Driver:
    return request.api.store.backend.driver


async def _check_job(request: ApiRequest, job_id: JobId, if_match: str | None) -> None:
    """Check the ETag, if given. The transition itself checks the job's state in its own statement."""
    if if_match is not None:
        check_etag(if_match, (await request.api.store.get(job_id)).job)


async def _payload(request: ApiRequest, job_id: JobId, body: RequeueBody) -> bytes:
    """Return the encoded new payload. It requires jobs:write because it is equivalent to creating a job."""
    check_scope(request, "jobs:write")
    store = request.api.store
    job = (await store.get(job_id)).job
    payload = await request.compute(request.size, payload_for, store.backend.tasks, job.type, body.payload)
    return await store.call(store.backend.client.encode, payload, job_id, job_type=job.type)


async def _transition(
    request: ApiRequest,
    job_id: JobId,
    action: str,
    change: Callable[[], list[Transitioned | IllegalTransition | JobNotFound]],
    **detail: str,
) -> JobSnapshot:
    """Change one job, write an audit entry, and return the job as it is afterwards."""
    store = request.api.store
    [result] = await store.call(change)
    if not isinstance(result, Transitioned):
        raise result
    await store.record_audit(request.caller, action, str(job_id), **detail)
    return await store.get(job_id, with_payload=request.shows_payload)


def _check_one_time(body: RequeueBody | RescheduleBody) -> None:
    if body.scheduled_for is not None and body.delay is not None:
        field_problem("/delay", "give scheduled_for or delay, not both")
