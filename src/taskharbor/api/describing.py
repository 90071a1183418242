"""How an operation is written down in the OpenAPI document: what it answers, how it refuses, and an example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi.responses import JSONResponse

from taskharbor.api.problems import MEDIA_TYPE, RETRY_AFTER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

_WORDS: Final = {
    400: "The body is not strict JSON.",
    401: "The key is missing or not good.",
    403: "The key lacks the scope, or the request comes from another site's page.",
    404: "There is no such thing.",
    409: "The job's state does not allow it; says which it is, and what may be done.",
    412: "The job has changed since the ETag of If-Match was read.",
    413: "The body is too large; the rest of it was not read.",
    422: "A field breaks a rule, or the idempotency key belongs to another body; says which and where.",
    429: "Too many waits and streams are open.",
    503: "The store is out of reach, or too many requests wait for it.",
}
_WITH_RETRY: Final = (429, 503)
EVERYWHERE: Final = (401, 403, 503)
WITH_BODY: Final = (400, 413, 422)
JSON: Final = "application/json"

IF_MATCH: Final = {
    "name": "If-Match",
    "in": "header",
    "description": "An ETag: the call is refused where the job has changed since.",
    "schema": {"type": "string"},
    "example": '"0123456789abcdef"',
}
KEY_PATTERN: Final = "^[!-~]{1,255}$"
IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Makes a repeat of this call harmless: it is answered with the job that the first one made.",
    "schema": {"type": "string", "pattern": KEY_PATTERN},
    "example": "welcome-7",
}


def describe(
    answers: Mapping[int, tuple[type[BaseModel], Any]],
    *problems: int,
    body: Any = None,
    headers: tuple[Mapping[str, Any], ...] = (),
) -> dict[str, Any]:
    """Return what a route's decorator takes. *answers* are shapes with an example each, *body* is what to send."""
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": shape, "description": _response_text(shape), "content": {JSON: {"example": example}}}
        for status, (shape, example) in answers.items()
    }
    responses |= {status: _problem(status) for status in sorted({*problems, *EVERYWHERE})}
    extra: dict[str, Any] = {}
    if body is not None:
        extra["requestBody"] = {"content": {JSON: {"example": body}}}
    if headers:
        extra["parameters"] = list(headers)
    return {"responses": responses, "openapi_extra": extra, "response_class": JSONResponse, "response_model": None}


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    told: dict[str, Any] = {"description": _WORDS[status], "content": {MEDIA_TYPE: {"schema": schema}}}
    if status in _WITH_RETRY:
        seconds = {"schema": {"type": "integer"}, "example": RETRY_AFTER}
        told["headers"] = {"Retry-After": {"description": "Seconds to wait before the next try."} | seconds}
    return told


def _response_text(shape: type[BaseModel]) -> str:
    return shape.__doc__ or shape.__name__
