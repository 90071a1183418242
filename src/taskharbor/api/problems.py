"""Error responses as RFC 9457 problems, and the table that maps exceptions to HTTP statuses and problem codes."""

from __future__ import annotations

import json
import logging
import re
from ast import literal_eval
from dataclasses import dataclass
from difflib import get_close_matches
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from taskharbor.core import errors
from taskharbor.core.states import Status
from taskharbor.core.text import one_line
from taskharbor.views import allowed_actions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fastapi import FastAPI, Request
    from pydantic import BaseModel

_LOG: Final = logging.getLogger("taskharbor.api")
MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_SECONDS: Final = 5
MAX_LOGGED_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """The HTTP status and the stable problem code of an error."""

    status: HTTPStatus
    code: str


# fmt: off
ERROR_STATUSES: Final[Mapping[type[Exception], ErrorStatus]] = MappingProxyType({
    Exception:                   ErrorStatus(HTTPStatus.INTERNAL_SERVER_ERROR, "unexpected"),
    errors.TaskHarborError:      ErrorStatus(HTTPStatus.INTERNAL_SERVER_ERROR, "unexpected"),
    errors.UsageError:           ErrorStatus(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request"),
    errors.UnknownType:          ErrorStatus(HTTPStatus.UNPROCESSABLE_ENTITY, "unknown-type"),
    errors.CodecMismatch:        ErrorStatus(HTTPStatus.INTERNAL_SERVER_ERROR, "codec-mismatch"),
    errors.PayloadNotDecodable:  ErrorStatus(HTTPStatus.INTERNAL_SERVER_ERROR, "payload-not-decodable"),
    errors.IdempotencyConflict:  ErrorStatus(HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency-conflict"),
    errors.IllegalTransition:    ErrorStatus(HTTPStatus.CONFLICT, "illegal-transition"),
    errors.JobNotFound:          ErrorStatus(HTTPStatus.NOT_FOUND, "job-not-found"),
    errors.OperationConflict:    ErrorStatus(HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency-conflict"),
    errors.OperationNotFound:    ErrorStatus(HTTPStatus.NOT_FOUND, "operation-not-found"),
    errors.ScheduleNotFound:     ErrorStatus(HTTPStatus.NOT_FOUND, "schedule-not-found"),
    errors.SchemaOutOfDate:      ErrorStatus(HTTPStatus.SERVICE_UNAVAILABLE, "schema-out-of-date"),
    errors.StoreUnavailable:     ErrorStatus(HTTPStatus.SERVICE_UNAVAILABLE, "store-unavailable"),
})
# fmt: on

# pydantic begins its messages with what it has got: "Input should be …", "String should have …".
_STEP: Final = re.compile(r"""\[(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]|(?:^|[.\[])(?P<name>\w+)""")
_SUBJECT: Final = re.compile(r"^(Input|String|List|Dictionary|Value) should ")


class HttpProblem(HTTPException):
    """An error response with a stable code. FastAPI passes HTTPExceptions through from any stage of a request."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.code = code
        self.more = more


def field_problem(pointer: str, rule: str) -> NoReturn:
    """Reject a request because of one field; *pointer* is the field's JSON pointer."""
    found = [{"pointer": pointer, "detail": rule}]
    raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", f"{pointer}: {rule}", errors=found)


def not_found(kind: str, name: str) -> HttpProblem:
    return HttpProblem(HTTPStatus.NOT_FOUND, f"{kind}-not-found", f"{kind} {name} not found")


def add_handlers(app: FastAPI) -> None:
    """Make *app* return a problem for every error."""
    app.exception_handler(HTTPException)(_refused)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(errors.TaskHarborError)(_raised)
    app.exception_handler(Exception)(_raised)


def problem_of(error: Exception) -> dict[str, Any]:
    """Return the problem that describes *error*, without internal details."""
    known = next(ERROR_STATUSES[kind] for kind in type(error).__mro__ if kind in ERROR_STATUSES)
    if known.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return problem(known.status, known.code, "internal error; see the server log")
    if isinstance(error, errors.StoreUnavailable):  # its message may contain host names
        return problem(known.status, known.code, "store unavailable; try again")
    return problem(known.status, known.code, str(error), **_extra_fields(error))


def problem(status: int, code: str, detail: str, **more: Any) -> dict[str, Any]:
    return {
        "type": f"urn:taskharbor:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "code": code,
        "detail": detail,
        **more,
    }


def problem_response(body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    status = body["status"]
    own = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status in {429, 503} else {}
    return Response(json.dumps(body), status, {**own, **(headers or {})}, MEDIA_TYPE)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  it is registered for this type
    if isinstance(error, HttpProblem):
        return problem_response(problem(error.status_code, error.code, error.detail, **error.more), error.headers)
    code, detail = _of_the_framework(request, error)
    return problem_response(problem(error.status_code, code, detail), error.headers)


def _of_the_framework(request: Request, error: HTTPException) -> tuple[str, str]:
    """Return the code and the detail of an error that the framework raises."""
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            return "no-such-path", f"no such path; {request.scope.get('root_path', '')}/docs lists all of them"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = (error.headers or {}).get("Allow", "")
            return "method-not-allowed", f"this path does not support {request.method}; it supports {allowed}"
        case _:
            return "malformed", error.detail


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  it is registered for this type
    body = getattr(request.scope.get("route"), "body_model", None)
    return problem_response(invalid(json_pointers(error.errors(), body), whole="body"))


def invalid(found: Iterable[dict[str, str]], *, whole: str) -> dict[str, Any]:
    """Return the problem with these `json_pointers`. *whole* names what the empty pointer points to."""
    errors = list(found)
    detail = "; ".join(f"{each['pointer'] or whole}: {each['detail']}" for each in errors)
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", detail, errors=errors)


async def _raised(request: Request, error: Exception) -> Response:
    body = problem_of(error)
    if body["status"] == HTTPStatus.INTERNAL_SERVER_ERROR:
        _LOG.error("%s failed", request_line(request), exc_info=error)
    elif body["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        _LOG.warning("%s failed: %s", request_line(request), error)
    return problem_response(body)


def request_line(request: Request) -> str:
    return one_line(f"{request.method} {request.scope['path']}", limit=MAX_LOGGED_CHARS)


def _extra_fields(error: Exception) -> dict[str, Any]:
    match error:
        case errors.IllegalTransition():
            return {"current_status": str(error.status), "actions": allowed_actions(Status(error.status))}
        case errors.IdempotencyConflict():
            return {"job_id": str(error.holder)}
        case errors.InvalidRequest():
            return {"errors": [{"pointer": _pointer(each.field), "detail": each.rule} for each in error.problems]}
        case _:
            return {}


def _pointer(field: str) -> str:
    """Return a field such as ``jobs[3].payload['a.b']`` as a JSON pointer into the body."""
    steps = (step["quoted"] or step["name"] for step in _STEP.finditer(field))
    return _escaped([literal_eval(step) if step[0] in "'\"" else step for step in steps])


def json_pointers(found: Iterable[Mapping[str, Any]], body: type[BaseModel] | None) -> Iterable[dict[str, str]]:
    """Yield the pointer and the violated rule of each validation error, without the value, which may be secret.

    *body* is the model of the body, if there is one.
    """
    for each in found:
        source, *path = each["loc"]
        pointer = _escaped(path) if source == "body" else f"{source}: {'/'.join(map(str, path))}"
        yield {"pointer": pointer, "detail": _rule(each, path, body)}


def _rule(error: Mapping[str, Any], path: Sequence[Any], body: type[BaseModel] | None) -> str:
    known = [] if body is None else list(body.model_fields)
    match error["type"]:
        case "missing" | "model_type" | "model_attributes_type" if not path and body is not None:
            required = [name for name, field in body.model_fields.items() if field.is_required()]
            return f"must be a JSON object{_listed('required', required)}{_listed('known', known)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a JSON object"
        case "missing":
            return "required"
        case "extra_forbidden":
            near = get_close_matches(str(path[-1]), known, n=1) if len(path) == 1 else []
            return f"unknown field; did you mean {near[0]}?" if near else "unknown field"
        case _:
            return _SUBJECT.sub("must ", str(error["msg"])).replace(" after validation", "")


def _listed(label: str, names: Sequence[str]) -> str:
    return f"; {label} fields: {', '.join(names)}" if names else ""


def _escaped(path: Sequence[Any]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
