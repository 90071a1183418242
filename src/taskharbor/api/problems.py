"""What goes wrong, as RFC 9457 tells it: one table from errors to statuses, and no words that are not ours."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
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

_LOG: Final = logging.getLogger("taskharbor.api")
MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = 5
MAX_LOGGED_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """How an error is answered. ``code`` is for programs and never changes."""

    status: HTTPStatus
    code: str


# fmt: off
VERDICTS: Final[Mapping[type[Exception], ErrorStatus]] = MappingProxyType({
    Exception:                   ErrorStatus(HTTPStatus.INTERNAL_SERVER_ERROR, "unexpected"),
    errors.TaskHarborError:      ErrorStatus(HTTPStatus.INTERNAL_SERVER_ERROR, "unexpected"),
    errors.UsageError:           ErrorStatus(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request"),
    errors.CodecMismatch:        ErrorStatus(HTTPStatus.INTERNAL_SERVER_ERROR, "codec-mismatch"),
    errors.PayloadNotDecodable:  ErrorStatus(HTTPStatus.INTERNAL_SERVER_ERROR, "payload-not-decodable"),
    errors.IdempotencyConflict:  ErrorStatus(HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency-conflict"),
    errors.IllegalTransition:    ErrorStatus(HTTPStatus.CONFLICT, "illegal-transition"),
    errors.JobNotFound:          ErrorStatus(HTTPStatus.NOT_FOUND, "job-not-found"),
    errors.ScheduleNotFound:     ErrorStatus(HTTPStatus.NOT_FOUND, "schedule-not-found"),
    errors.SchemaOutOfDate:      ErrorStatus(HTTPStatus.SERVICE_UNAVAILABLE, "schema-out-of-date"),
    errors.StoreUnavailable:     ErrorStatus(HTTPStatus.SERVICE_UNAVAILABLE, "store-unavailable"),
})
# fmt: on

# What the framework itself refuses.
_CODES: Final = MappingProxyType({404: "no-such-path", 405: "method-not-allowed"})


class HttpProblem(HTTPException):
    """An answer that is no success, with its stable code. FastAPI lets it pass, whatever it is doing."""

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


def field_problem(where: str, rule: str) -> NoReturn:
    """Refuse a request for one of its fields; *where* is its JSON pointer."""
    found = [{"pointer": where, "detail": rule}]
    raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", f"{where}: {rule}", errors=found)


def not_found(kind: str, name: str) -> HttpProblem:
    return HttpProblem(HTTPStatus.NOT_FOUND, f"{kind}-not-found", f"there is no {kind} {name}")


def add_handlers(app: FastAPI) -> None:
    """Let *app* answer every error by a problem."""
    app.exception_handler(HTTPException)(_refused)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(errors.TaskHarborError)(_raised)
    app.exception_handler(Exception)(_raised)


def problem_of(error: Exception) -> dict[str, Any]:
    """Return the problem that tells of *error*, without a word about our insides."""
    verdict = next(VERDICTS[kind] for kind in type(error).__mro__ if kind in VERDICTS)
    if verdict.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return problem(verdict.status, verdict.code, "this is a fault of the server; its log says more")
    if isinstance(error, errors.StoreUnavailable):  # why not may name hosts
        return problem(verdict.status, verdict.code, "the store is out of reach; try again")
    return problem(verdict.status, verdict.code, str(error), **_facts(error))


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
    own = {"Retry-After": str(RETRY_AFTER)} if status in {429, 503} else {}
    return Response(json.dumps(body), status, {**own, **(headers or {})}, MEDIA_TYPE)


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  what it was registered for
    if isinstance(error, HttpProblem):
        return problem_response(problem(error.status_code, error.code, error.detail, **error.more), error.headers)
    code = _CODES.get(error.status_code, "malformed")
    return problem_response(problem(error.status_code, code, error.detail), error.headers)


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  what it was registered for
    found = list(json_pointers(error.errors()))
    detail = "; ".join(f"{each['pointer']}: {each['detail']}" for each in found)
    return problem_response(problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", detail, errors=found))


async def _raised(request: Request, error: Exception) -> Response:
    told = problem_of(error)
    if told["status"] == HTTPStatus.INTERNAL_SERVER_ERROR:
        _LOG.error("%s failed", _asked(request), exc_info=error)
    elif told["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        _LOG.warning("%s failed: %s", _asked(request), error)
    return problem_response(told)


def _asked(request: Request) -> str:
    return one_line(f"{request.method} {request.scope['path']}", limit=MAX_LOGGED_CHARS)


def _facts(error: Exception) -> dict[str, Any]:
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
    """Return a field such as ``jobs[3].payload.a`` as a JSON pointer into the body."""
    return "".join(f"/{part}" for part in field.replace("[", ".").replace("]", "").split(".") if part)


def json_pointers(found: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    """Say where, and which rule was broken; what was sent is not repeated, since it may be secret."""
    for each in found:
        place, *path = each["loc"]
        where = _escaped(path) if place == "body" else f"{place}: {'/'.join(map(str, path))}"
        yield {"pointer": where, "detail": str(each["msg"])}


def _escaped(path: Sequence[Any]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
