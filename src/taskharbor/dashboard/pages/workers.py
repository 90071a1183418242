"""Workers: the list with those that are gone, and one with the jobs that it holds and those lost with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Path
from fastapi.responses import Response

from taskharbor.api.problems import not_found
from taskharbor.api.routing import requires_scope
from taskharbor.core.model import JobSummary, WorkerRecord
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.drivers.base import Inspector
from taskharbor.workers import LostJob, WorkerState, find_worker, held_by, list_workers, lost_with, state_of

router: Final = ui_router()
WorkerParam = Annotated[str, Path(max_length=255)]
_ORDER: Final = [WorkerState.SILENT, WorkerState.LIVE, WorkerState.GONE]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWorker:
    """A worker and its state."""

    record: WorkerRecord
    state: WorkerState


@router.get("/workers")
@requires_scope("jobs:read")
async def workers(request: UiRequest) -> Response:
    """Show the workers, silent ones first."""
    records = await request.reads.cached("all workers", lambda inspector: list_workers(inspector, include_past=True))
    now = await request.reads.now()
    shown = [ShownWorker(record=each, state=state_of(each, now)) for each in records]
    shown.sort(key=lambda each: (_ORDER.index(each.state), each.record.id))
    live = {each.record.version for each in shown if each.state is WorkerState.LIVE}
    return await request.page("workers.html", workers=shown, versions=sorted(each or "unknown" for each in live))


@router.get("/workers/{worker_id}")
@requires_scope("jobs:read")
async def worker(request: UiRequest, worker_id: WorkerParam) -> Response:
    """Show a worker."""
    found, held, lost = await request.reads.fresh(lambda inspector: _read(inspector, worker_id))
    if found is None:
        raise not_found("worker", worker_id)
    shown = ShownWorker(record=found, state=state_of(found, await request.reads.now()))
    return await request.page("worker.html", worker=shown, held=held, lost=lost)


def _read(inspector: Inspector, worker_id: str) -> tuple[WorkerRecord | None, tuple[JobSummary, ...], list[LostJob]]:
    return find_worker(inspector, worker_id), held_by(inspector, worker_id).jobs, lost_with(inspector, worker_id)
