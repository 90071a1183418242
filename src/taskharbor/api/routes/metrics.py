"""The endpoint that Prometheus scrapes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import Response

from taskharbor.api.openapi import describe
from taskharbor.api.problems import HttpProblem
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.installation import install_command

router: Final = APIRouter(tags=["metrics"], route_class=ApiRoute)
_EXAMPLE: Final = "# TYPE taskharbor_workers gauge\ntaskharbor_workers 2.0\n"


def _text(*problems: int) -> dict[str, Any]:
    options = describe({}, *problems)
    content = {"text/plain": {"schema": {"type": "string"}, "example": _EXAMPLE}}
    options["responses"][200] = {"description": "Metrics in the text format of Prometheus.", "content": content}
    return options | {"response_class": Response}


@router.get("/metrics", summary="Get metrics", **_text(404))
@requires_scope("metrics:read")
async def metrics(request: ApiRequest) -> Response:
    """Return the metrics of this process and the gauges of the store, for Prometheus; 404 if metrics are off."""
    registry = request.api.metrics
    if registry is None:
        detail = f"this process exports no metrics; 'taskharbor api' does after: {install_command('prometheus')}"
        raise HttpProblem(HTTPStatus.NOT_FOUND, "metrics-off", detail)
    from taskharbor.observability.prometheus import render  # noqa: PLC0415  optional

    body, content_type = await request.api.store.page(render, registry)
    return Response(body, headers={"Content-Type": content_type})
