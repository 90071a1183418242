"""Convert Pydantic models to JSON and back. Models are recognized by their methods; pydantic is not imported."""

from __future__ import annotations

import json
from typing import Any

from taskharbor.core.conversion import Converter, TypeMismatch, require_exact_type, type_name


def model(kind: Any) -> Converter:
    """Return the converter of the model class *kind*."""

    def pack(value: Any, path: str) -> Any:
        known = require_exact_type(kind, value, path)
        try:
            return _checked_dump(kind, known, path, by_alias=True)
        except TypeMismatch as refused:
            try:
                return _checked_dump(kind, known, path, by_alias=False)  # the alias may be a serialization alias only
            except TypeMismatch:
                raise refused from None

    return Converter(pack, lambda value, path: _validated(kind, value, path))


def _checked_dump(kind: Any, value: Any, path: str, *, by_alias: bool) -> Any:
    """Dump a model, and check that it validates to an equal one. A SecretStr, for example, is dumped as asterisks."""
    try:
        stored = value.model_dump(mode="json", by_alias=by_alias, round_trip=True, warnings=False)
    except ValueError as error:
        raise TypeMismatch(path, f"{type_name(kind)} cannot be dumped as JSON: {type(error).__name__}") from error
    loaded = _validated(kind, stored, path)
    for name in kind.model_fields:
        if getattr(loaded, name) != getattr(value, name):
            raise TypeMismatch(
                f"{path}.{name}", "would not be read back unchanged: check how its model dumps it as JSON"
            )
    return stored


def _validated(kind: Any, value: Any, path: str) -> Any:
    try:
        # Validate as JSON if possible: only then does a strict model accept a string as a date.
        return kind.model_validate_json(text) if (text := _as_json(value)) else kind.model_validate(value)
    except ValueError as error:
        raise TypeMismatch(path, _first_problem(error, kind)) from error


def _as_json(value: Any) -> str | None:
    try:
        return json.dumps(value)
    except TypeError:
        return None  # the codec may support types that JSON lacks


def _first_problem(error: ValueError, kind: Any) -> str:
    """Return the first validation error in one line, without the value, which may be secret."""
    found = error.errors()[0] if hasattr(error, "errors") else {"loc": (), "msg": type(error).__name__}
    place = ".".join(str(part) for part in found["loc"])
    return f"not a valid {type_name(kind)}: {place + ': ' if place else ''}{found['msg']}"
