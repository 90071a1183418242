"""The pages of the dashboard, one module each. Add a new page to `ROUTERS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskharbor.dashboard.pages import (
    audit,
    bulk,
    dead,
    events,
    find,
    health,
    job,
    jobs,
    keys,
    login,
    operations,
    overview,
    queue,
    queues,
    schedules,
    workers,
)

if TYPE_CHECKING:
    from fastapi import APIRouter

ROUTERS: Final[tuple[APIRouter, ...]] = (
    login.router,
    overview.router,
    queues.router,
    queue.router,
    bulk.router,
    jobs.router,
    job.router,
    operations.router,
    dead.router,
    schedules.router,
    workers.router,
    health.router,
    audit.router,
    keys.router,
    find.router,
    events.router,
)
