"""Convert pydantic models to JSON and back, and enforce pydantic's constraints on annotated values.

Models are recognized by their methods. pydantic is imported only for an annotation with its constraints.
"""

from __future__ import annotations

import json
from functools import partial
from importlib import import_module
from typing import Any, Final

from taskharbor.core.conversion import Converter, TypeMismatch, Walk, require_exact_type, step_to, type_name
from taskharbor.core.errors import Problem, UsageError


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


def constrained(annotation: Any, inner: Converter) -> Converter:
    """Return *inner* with the constraints of an ``Annotated`` type, such as ``Annotated[int, Field(gt=3)]``.

    Metadata of other libraries is ignored. Raise `UsageError` if pydantic cannot enforce the constraints.
    """
    if not any(type(each).__module__.partition(".")[0] in _CONSTRAINTS for each in annotation.__metadata__):
        return inner
    try:
        validate = import_module("pydantic").TypeAdapter(annotation).validate_python
    except ModuleNotFoundError as error:
        rule = "only pydantic enforces these constraints: install it (pip install pydantic), or check in the task"
        raise UsageError(Problem(field="annotation", value=type_name(annotation), rule=rule)) from error
    except Exception as error:
        rule = f"pydantic cannot enforce its constraints: {' '.join(str(error).split())}"
        raise UsageError(Problem(field="annotation", value=type_name(annotation), rule=rule)) from error

    def valid(value: Any, path: str) -> Any:
        try:
            return validate(value)
        except ValueError as error:
            raise _first_mismatch(error, path) from error

    def pack(value: Any, path: str) -> Any:
        inner.pack(value, path)  # refuses another type, which pydantic would convert
        return inner.pack(valid(value, path), path)

    def load(walk: Walk, value: Any, path: str) -> Any:
        return valid(walk(value, path), path)

    loads = (partial(load, walk) for walk in (inner.unpack, inner.read))
    return Converter(pack, *loads, parts=lambda: [("", inner)])


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
        raise _first_mismatch(error, path, f"not a valid {type_name(kind)}: ") from error


def _as_json(value: Any) -> str | None:
    try:
        return json.dumps(value)
    except TypeError:
        return None  # the codec may support types that JSON lacks


def _first_mismatch(error: ValueError, path: str, label: str = "") -> TypeMismatch:
    """Return the first validation error of a value at *path*, without the value, which may be secret."""
    found = error.errors()[0] if hasattr(error, "errors") else {"loc": (), "msg": type(error).__name__}
    for part in found["loc"]:
        path = f"{path}[{part}]" if isinstance(part, int) else step_to(path, part)
    return TypeMismatch(path, f"{label}{found['msg']}")


_CONSTRAINTS: Final = frozenset({"annotated_types", "pydantic"})
"""The libraries whose metadata in ``Annotated`` are constraints."""
