"""The OpenAPI document is complete and correct."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from taskharbor.api_keys import SCOPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.api_rig import ApiRig


@pytest.fixture
def document(site: ApiRig) -> dict[str, Any]:
    made: dict[str, Any] = site.get("/openapi.json").json()
    return made


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def contents(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the contents of the request and of successful responses."""
    yield from operation.get("requestBody", {}).get("content", {}).values()
    for status, response in operation["responses"].items():
        if status.startswith("2"):
            yield from response.get("content", {}).values()


def test_it_is_openapi_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")


def test_every_operation_says_what_it_does_and_which_scope_it_needs(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        assert operation["summary"], name
        assert operation["description"], name
        scopes = [scope for each in operation["security"] for scope in each["key"]]
        assert {*scopes} <= {*SCOPES}, name


def test_every_operation_has_an_example_that_keeps_its_own_schema(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for content in contents(operation):
            assert "example" in content, name
            schema = content["schema"] | {"components": document["components"]}
            jsonschema_rs.validator_for(schema).validate(content["example"])


def test_every_refusal_is_a_problem(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            if not status.startswith("2"):
                assert [*response["content"]] == ["application/problem+json"], (name, status)


def test_no_operation_has_the_name_of_another(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(document)]

    assert len(names) == len({*names})


def test_the_page_of_docs_lists_every_operation(site: ApiRig, document: dict[str, Any]) -> None:
    page = site.get("/docs").text

    assert all(path in page for path in document["paths"])
