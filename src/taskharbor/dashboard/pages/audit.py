"""The audit log."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from fastapi.responses import Response

from taskharbor.api.routing import requires_scope
from taskharbor.api_keys import ADMIN
from taskharbor.audit_log import read_audit
from taskharbor.core.ids import Token
from taskharbor.dashboard.routing import UiRequest, ui_router

router: Final = ui_router()
PAGE: Final = 50
FIELDS: Final = ("actor", "action", "target")
MAX_CHARS: Final = 255


@router.get("/audit")
@requires_scope(ADMIN)
async def audit(request: UiRequest) -> Response:
    """Show who changed what, newest first."""
    given = {name: text for name in FIELDS if (text := request.query_params.get(name, "").strip()[:MAX_CHARS])}
    before = _token(request.query_params.get("cursor", ""))
    page = await request.reads.fresh(
        lambda inspector: read_audit(
            inspector,
            limit=PAGE,
            before=before,
            target=given.get("target"),
            actor=given.get("actor"),
            action=given.get("action"),
        )
    )
    older = "" if page.after is None else urlencode({**given, "cursor": str(page.after)})
    return await request.page("audit.html", entries=page.entries, given=given, older=older, fields=FIELDS)


def _token(text: str) -> Token | None:
    try:
        return Token(UUID(text))
    except ValueError:
        return None
