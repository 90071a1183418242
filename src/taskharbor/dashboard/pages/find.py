"""The palette: finds a job, a queue, a type, a schedule, a worker or a page by a few letters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import quote
from uuid import UUID

from fastapi import Query
from fastapi.responses import RedirectResponse, Response

from taskharbor.api.routing import requires_scope
from taskharbor.core.ids import JobId
from taskharbor.core.results import JobFilter
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.dashboard.shell import NAVIGATION
from taskharbor.drivers.base import Inspector

router: Final = ui_router()
MIN_PREFIX_DIGITS: Final = 8
MAX_FOUND: Final = 20
_HEX: Final = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Found:
    """Something that the palette found: its kind, its name, and the path of its page."""

    kind: str
    name: str
    path: str


@router.get("/find")
@requires_scope("jobs:read")
async def find(request: UiRequest, q: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Show what matches; without scripts, a single job is opened at once."""
    text = q.strip()
    found = await _search(request, text) if text else []
    if len(found) == 1 and found[0].kind == "job" and request.part is None:
        return RedirectResponse(f"{request.base}{found[0].path}", HTTPStatus.SEE_OTHER)
    return await request.page("find.html", q=text, found=found)


async def _search(request: UiRequest, text: str) -> list[Found]:
    jobs = await request.reads.fresh(lambda inspector: _jobs(inspector, text))
    return [*jobs, *await _names(request, text.lower())][:MAX_FOUND]


def _jobs(inspector: Inspector, text: str) -> list[Found]:
    """Return the jobs whose id is *text* or begins with it, or that hold it as their idempotency key."""
    digits = text.lower().replace("-", "")
    found: dict[JobId, str] = {}
    if len(digits) >= MIN_PREFIX_DIGITS and _HEX.fullmatch(digits):
        if len(digits) == len(UUID(int=0).hex):
            job_id = JobId(UUID(digits))
            found |= {each: job.type for each, job in inspector.summaries([job_id]).items()}
        elif len(digits) < len(UUID(int=0).hex):
            page = inspector.find(JobFilter(id_prefix=digits), limit=MAX_FOUND)
            found |= {job.id: job.type for job in page.jobs}
    by_key = inspector.find_by_key(text)[:MAX_FOUND]
    found |= {each: job.type for each, job in inspector.summaries(by_key).items()} if by_key else {}
    return [Found("job", f"{job_type} {job_id}", f"/jobs/{job_id}") for job_id, job_type in found.items()]


async def _names(request: UiRequest, text: str) -> list[Found]:
    reads, found = request.reads, []
    verb, _, rest = text.partition(" ")
    queues = [each.name for each in await reads.queues()]
    if verb in {"pause", "resume"} and request.can("queues:control"):
        found += [Found(f"{verb} queue", name, f"{_path('queues', name)}/{verb}") for name in queues if rest in name]
    found += [Found("queue", name, _path("queues", name)) for name in queues if text in name.lower()]
    workers = await reads.workers()
    types = sorted({name for each in workers for name in each.types})
    found += [Found("type", name, f"/jobs?type={quote(name)}") for name in types if text in name.lower()]
    schedules = [name for name in await reads.schedules() if text in name.lower()]
    found += [Found("schedule", name, _path("schedules", name)) for name in schedules]
    found += [Found("worker", each.id, _path("workers", each.id)) for each in workers if text in each.id.lower()]
    pages = [each for each in NAVIGATION if each.path in request.ui.paths and text in each.title.lower()]
    return [*found, *(Found("page", each.title, each.path) for each in pages if request.may(each.scope))]


def _path(kind: str, name: str) -> str:
    return f"/{kind}/{quote(name, safe='')}"
