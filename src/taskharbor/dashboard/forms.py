"""Values of forms: numbers, durations and JSON, with a problem that names the field if one cannot be read."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from taskharbor.api.problems import HttpProblem
from taskharbor.core.codec import strict_json
from taskharbor.core.durations import parse_duration
from taskharbor.core.errors import PayloadNotDecodable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

B = TypeVar("B", bound=BaseModel)


def reject_form(detail: str) -> NoReturn:
    """Answer a form with a page that shows *detail*. Nothing was changed."""
    raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-form", detail)


def whole_number(text: str, field: str) -> int | None:
    """Return a whole number; None if the field is empty."""
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        reject_form(f"{field}: {text!r} is not a whole number")


def rate(text: str, field: str) -> float | None:
    """Return a positive number; None if the field is empty."""
    try:
        value = float(text) if text else None
    except ValueError:
        value = 0.0
    if value is not None and not 0 < value < float("inf"):
        reject_form(f"{field}: {text!r} is not a positive number")
    return value


def duration(text: str, field: str) -> timedelta | None:
    """Return a duration; None if the field is empty."""
    if not text:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        reject_form(f"{field}: {error}")


def checked(model: type[B], given: Mapping[str, Any]) -> B:
    """Return the body of a request to the API with the values that are given, or name the field that is not valid."""
    try:
        return model.model_validate_json(
            json.dumps({name: value for name, value in given.items() if value is not None})
        )
    except ValidationError as error:
        first = error.errors()[0]
        name = "/".join(map(str, first["loc"]))
        reject_form(f"{name}: {first['msg']}")


def json_value(text: str, field: str) -> Any:
    """Return a value of JSON, by the rules for payloads: no name twice, no NaN, not nested too deeply."""
    try:
        return strict_json(text.encode())
    except PayloadNotDecodable as error:
        reject_form(f"{field}: not JSON: {error.reason}")
