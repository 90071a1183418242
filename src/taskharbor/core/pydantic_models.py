"""Pydantic models as plain JSON. They are known by their methods: nothing of pydantic is imported here."""

from __future__ import annotations

import json
from typing import Any

from taskharbor.core.conversion import Converter, TypeMismatch, require_exact_type, type_name


def model(kind: Any) -> Converter:
    """Return the shape of the model *kind*."""

    def pack(value: Any, path: str) -> Any:
        known = require_exact_type(kind, value, path)
        try:
            return _returning(kind, known, path, by_alias=True)
        except TypeMismatch as refused:
            try:
                return _returning(kind, known, path, by_alias=False)  # its alias may be for writing only
            except TypeMismatch:
                raise refused from None

    return Converter(pack, lambda value, path: _validated(kind, value, path))


def _returning(kind: Any, value: Any, path: str, *, by_alias: bool) -> Any:
    """Return a model as it is stored, if that comes back as the same: a secret, for one, is stored as asterisks."""
    try:
        stored = value.model_dump(mode="json", by_alias=by_alias, round_trip=True, warnings=False)
    except ValueError as error:
        raise TypeMismatch(path, f"cannot be made JSON by {type_name(kind)}: {type(error).__name__}") from error
    back = _validated(kind, stored, path)
    for name in kind.model_fields:
        if getattr(back, name) != getattr(value, name):
            raise TypeMismatch(f"{path}.{name}", "would not come back as it is: see what its model makes of it as JSON")
    return stored


def _validated(kind: Any, value: Any, path: str) -> Any:
    try:
        # As JSON, where that is what it is: a strict model takes a date for a date only there.
        return kind.model_validate_json(text) if (text := _as_json(value)) else kind.model_validate(value)
    except ValueError as error:
        raise TypeMismatch(path, _first_problem(error, kind)) from error


def _as_json(value: Any) -> str | None:
    try:
        return json.dumps(value)
    except TypeError:
        return None  # a codec may know more types than JSON does


def _first_problem(error: ValueError, kind: Any) -> str:
    """Return what a model found, in a line; never the value, which may be a secret."""
    found = error.errors()[0] if hasattr(error, "errors") else {"loc": (), "msg": type(error).__name__}
    place = ".".join(str(part) for part in found["loc"])
    return f"is no {type_name(kind)}: {place + ': ' if place else ''}{found['msg']}"
