"""The OpenAPI document, and a page that shows it without a script and without anybody's servers."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, Response

from taskharbor._version import __version__
from taskharbor.api.routing import PUBLIC, ApiRequest, ApiRoute, requires_scope
from taskharbor.api.shapes import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

router: Final = APIRouter(route_class=ApiRoute, include_in_schema=False)

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE: Final = "body{font:16px/1.5 sans-serif;margin:2rem auto;max-width:60rem}td{padding:.2rem 1rem .2rem 0}"
_SUMMARY: Final = "Background jobs that are never lost and never run twice at once."


@router.get("/openapi.json")
@requires_scope(PUBLIC)
async def openapi(request: ApiRequest) -> Response:
    document = dict(request.app.openapi())
    if request.root:
        document["servers"] = [{"url": request.root}]
    return JSONResponse(document)


@router.get("/docs")
@requires_scope(PUBLIC)
async def docs(request: ApiRequest) -> Response:
    rows = "".join(_rows(request.app.openapi()))
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>TaskHarbor API</title><style>{_STYLE}</style>"
        f"<h1>TaskHarbor API</h1><p>{_SUMMARY} <a href=openapi.json>The OpenAPI document</a></p>"
        f"<table>{rows}</table></html>"
    )
    return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"})


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of *app*, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title="TaskHarbor", version=__version__, summary=_SUMMARY, routes=app.routes, openapi_version="3.1.0"
        )
        schemas = made["components"]["schemas"]
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schemas["Problem"].pop("$defs", {})
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
        _complete(app, made["paths"])
        app.openapi_schema = made
    return app.openapi_schema


def _complete(app: FastAPI, paths: dict[str, Any]) -> None:
    """Say at each operation which scope it needs, and give examples back what FastAPI took from them: every null."""
    for route in routes_of(app):
        for method in (route.methods or ()) if route.include_in_schema else ():
            operation = paths[route.path_format][method.lower()]
            operation["security"] = [] if route.needs == PUBLIC else [{"key": [route.needs]}]
            for status, told in route.responses.items():
                for media, content in told.get("content", {}).items():
                    operation["responses"][str(status)]["content"][media] |= content
            if route.needs == PUBLIC:
                for status in ("401", "403"):
                    operation["responses"].pop(status, None)


def routes_of(app: FastAPI) -> list[ApiRoute]:
    """Return every route of *app*; each knows what it needs."""
    return [route for route in app.routes if isinstance(route, ApiRoute)]


def _rows(schema: dict[str, Any]) -> Iterator[str]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            scope = next((scopes["key"][0] for scopes in operation["security"]), "")
            cells = (method.upper(), path, operation["summary"], scope)
            yield f"<tr>{''.join(f'<td>{escape(cell)}' for cell in cells)}"
