"""The list of queues."""

from __future__ import annotations

from typing import Final

from fastapi.responses import Response

from taskharbor.api.routing import requires_scope
from taskharbor.dashboard.pages.figure_reads import all_queues
from taskharbor.dashboard.routing import UiRequest, ui_router

router: Final = ui_router()


@router.get("/queues")
@requires_scope("jobs:read")
async def queues(request: UiRequest) -> Response:
    """Show all queues, the worst first."""
    return await request.page("queues.html", queues=await all_queues(request.reads))
