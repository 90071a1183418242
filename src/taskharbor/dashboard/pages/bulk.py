"""Bulk operations on the jobs of a list: a preview, and the form that stores the operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from fastapi.responses import Response

from taskharbor.api import actions
from taskharbor.api.requests import OperationBody, to_timedelta
from taskharbor.api.routing import requires_scope
from taskharbor.core.ids import JobId
from taskharbor.core.operations import OperationKind, OperationOptions
from taskharbor.dashboard import forms
from taskharbor.dashboard.forms import reject_form
from taskharbor.dashboard.job_filters import GivenFilter, read_filter
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.diagnosis import is_alive
from taskharbor.operations import START_DELAY, OperationRequest, Preview

router: Final = ui_router()
MAX_IDS: Final = 200
DEFAULT_RATE: Final = "10"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a bulk operation is about: ticked jobs, or all that match a filter."""

    kind: OperationKind
    job_ids: tuple[JobId, ...] | None
    given: GivenFilter

    def request(self, by: str, options: OperationOptions, reason: str = "") -> OperationRequest:
        """Return the operation. It is not checked yet."""
        return OperationRequest(
            kind=self.kind,
            by=by,
            reason=reason,
            filter=None if self.job_ids is not None else self.given.wanted,
            job_ids=self.job_ids,
            options=options,
        )


@router.get("/jobs/bulk")
@requires_scope("jobs:control")
async def ask(request: UiRequest) -> Response:
    """Show what a bulk operation would change."""
    selection = _selection(request.query_params.getlist, await request.reads.now())
    # A reschedule needs a time; which one does not change what it is about.
    options = OperationOptions(delay=timedelta(0)) if selection.kind is OperationKind.RESCHEDULE else OperationOptions()
    found = await actions.preview_operation(request, selection.request(request.caller.name, options))
    return await _show(request, selection, found)


@router.post("/jobs/bulk")
@requires_scope("jobs:control")
async def start(request: UiRequest) -> Response:
    """Store a bulk operation. It can be undone until it starts."""
    selection = _selection(request.fields, await request.reads.now())
    body = _body(request, selection.kind)
    wanted = selection.request(request.caller.name, _options(body), body.reason)
    found = await actions.preview_operation(request, wanted)
    if selection.kind is OperationKind.PURGE and request.field("typed") != str(found.matched):
        reject_form(f"type the number of jobs, {found.matched}, to purge them; nothing was changed")
    operation, _ = await actions.create_operation(request, wanted, found, starts_in=START_DELAY)
    path = f"/operations/{operation.id}"
    return request.redirect(path, f"The {selection.kind} starts in 5 s. Until then, it can be undone here.")


async def _show(request: UiRequest, selection: Selection, found: Preview) -> Response:
    fields = [("kind", selection.kind.value)]
    if selection.job_ids is not None:
        fields += [("id", str(each)) for each in selection.job_ids]
    else:
        fields += [("all", "1"), *selection.given.fixed()]
    handled = await _handled(request, found) if selection.kind is OperationKind.REQUEUE else {}
    return await request.page(
        "bulk.html",
        selection=selection,
        found=found,
        fields=fields,
        handled=handled,
        back="/jobs?" + selection.given.query(),
        default_rate=DEFAULT_RATE,
    )


async def _handled(request: UiRequest, found: Preview) -> dict[str, bool]:
    """Return whether a live worker handles each type of the sample, in the queue of its jobs."""
    now = await request.reads.now()
    alive = [each for each in await request.reads.workers() if is_alive(each, now)]
    return {
        job.type: any(job.queue in worker.queues and job.type in worker.types for worker in alive)
        for job in found.sample
    }


def _selection(values: Callable[[str], Sequence[str]], now: datetime) -> Selection:
    kinds = [each.value for each in OperationKind if each.value in values("kind")]
    if not kinds:
        reject_form("choose what to do with the jobs")
    given = read_filter(values, now)
    if given.problems:
        reject_form(given.problems[0])
    try:
        ids = tuple(JobId(UUID(each)) for each in values("id"))
    except ValueError:
        reject_form("an id of a job is not valid")
    if not ids and not values("all"):
        reject_form("no job is ticked: tick some, or choose all that match the filter")
    if len(ids) > MAX_IDS:
        reject_form(f"at most {MAX_IDS} jobs can be ticked: use a filter")
    return Selection(kind=OperationKind(kinds[0]), job_ids=None if values("all") else ids, given=given)


def _body(request: UiRequest, kind: OperationKind) -> OperationBody:
    """Return the options of the form, checked by the rules of the API: a worker must be able to perform them."""
    delay = forms.duration(request.field("delay"), "due in")
    given = {
        "kind": kind.value,
        "budget": forms.whole_number(request.field("budget"), "attempts"),
        "delay": None if delay is None else delay.total_seconds(),
        "scheduled_for": request.field("scheduled_for") or None,
        "priority": forms.whole_number(request.field("priority"), "priority"),
        "rate": forms.rate(request.field("rate"), "jobs per second"),
        "reason": request.field("reason"),
    }
    return forms.checked(OperationBody, given)


def _options(body: OperationBody) -> OperationOptions:
    return OperationOptions(
        budget=body.budget,
        delay=to_timedelta(body.delay),
        scheduled_for=body.scheduled_for,
        priority=body.priority,
        rate=body.rate,
    )
