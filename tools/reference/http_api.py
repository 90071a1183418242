"""The operations, schemas and problem codes of the HTTP API, from its OpenAPI document and its code."""

from __future__ import annotations

import ast
from collections import defaultdict
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import taskharbor
from taskharbor import Harbor
from taskharbor.api import create_app
from taskharbor.api.problems import ERROR_STATUSES
from tools.reference.markdown import code, table

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE: Final = Path(taskharbor.__file__).parent / "api"


def document() -> dict[str, Any]:
    with Harbor("memory://") as harbor:
        found: dict[str, Any] = create_app(harbor).openapi()
    return found


def operations() -> str:
    described = document()
    return "".join(
        _operation(method, path, operation, parameters_of_path=item.get("parameters", []))
        for path, item in described["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    )


def _operation(method: str, path: str, operation: dict[str, Any], *, parameters_of_path: list[Any]) -> str:
    parameters = [
        (code(each["name"]), each["in"], _type_of(each.get("schema", {})), each.get("description", ""))
        for each in [*parameters_of_path, *operation.get("parameters", [])]
    ]
    body = operation.get("requestBody", {}).get("content", {})
    answers = [
        (status, answer.get("description", ""), ", ".join(_bodies(answer.get("content", {}))))
        for status, answer in operation.get("responses", {}).items()
    ]
    prose = operation.get("description") or operation.get("summary") or ""
    return (
        f"## {method.upper()} {path}\n\n{prose}\n\n"
        + (f"Body: {', '.join(_bodies(body))}\n\n" if body else "")
        + table(["parameter", "in", "type", ""], parameters)
        + table(["status", "", "body"], answers)
    )


def _bodies(content: dict[str, Any]) -> Iterator[str]:
    for kind, each in content.items():
        yield f"{_type_of(each.get('schema', {}))} ({code(kind)})"


def _type_of(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return code(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return " or ".join(code(str(each)) for each in schema["enum"])
    if "const" in schema:
        return code(str(schema["const"]))
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(dict.fromkeys(_type_of(each) for each in schema.get("anyOf") or schema["oneOf"]))
    if schema.get("type") == "array":
        return f"list of {_type_of(schema.get('items', {}))}"
    kind = schema.get("type", "any")
    return str(schema.get("format", " or ".join(kind) if isinstance(kind, list) else kind))


def schemas() -> str:
    return "".join(
        f"### {name}\n\n{schema.get('description', '')}\n\n{table(['field', 'type', ''], _fields(schema))}"
        for name, schema in sorted(document()["components"]["schemas"].items())
    )


def _fields(schema: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    required = schema.get("required", [])
    for name, each in schema.get("properties", {}).items():
        kind = _type_of(each) + (" (required)" if name in required and "additionalProperties" in schema else "")
        yield code(name), kind, each.get("description", "")


def codes() -> str:
    found: defaultdict[int, set[str]] = defaultdict(set)
    for each in ERROR_STATUSES.values():
        found[each.status.value].add(each.code)
    for status, name in _raised():
        found[status].add(name)
    rows = [(str(status), ", ".join(map(code, sorted(names)))) for status, names in sorted(found.items())]
    return table(["status", "codes"], rows)


def _raised() -> Iterator[tuple[int, str]]:
    """Yield the status and code of each problem that the routes raise themselves."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(
                    args=[ast.Attribute(value=ast.Name("HTTPStatus"), attr=status), ast.Constant(str(name)), *_]
                ):
                    yield HTTPStatus[status].value, name
                case ast.Call(func=ast.Name("not_found"), args=[ast.Constant(str(kind)), *_]):
                    yield HTTPStatus.NOT_FOUND.value, f"{kind}-not-found"
                case ast.match_case(
                    pattern=ast.MatchValue(ast.Attribute(value=ast.Name("HTTPStatus"), attr=status)),
                    body=[*_, ast.Return(ast.Tuple([ast.Constant(str(name)), *_]))],
                ):
                    yield HTTPStatus[status].value, name
