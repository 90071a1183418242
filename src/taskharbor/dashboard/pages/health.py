"""What ``taskharbor doctor`` finds about the store and its jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from fastapi.responses import Response

from taskharbor.api.routing import requires_scope
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.doctor.findings import Level

router: Final = ui_router()
_ORDER: Final = (Level.FAIL, Level.WARN, Level.OK)


@router.get("/health")
@requires_scope("jobs:read")
async def health(request: UiRequest) -> Response:
    """Show the findings, the worst first. The checks run at most every 30 seconds."""
    found = await request.api.store.health()
    findings = sorted(found["findings"], key=lambda each: _ORDER.index(Level(each["level"])))
    checked_at = datetime.fromisoformat(found["checked_at"])
    return await request.page("health.html", findings=findings, checked_at=checked_at, level=found["level"])
