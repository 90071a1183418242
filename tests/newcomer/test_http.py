"""The HTTP API with the curl that one would type."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.shell import Shell

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="NOT RUN: this machine has no curl")


@pytest.fixture
def url(shop: Shell) -> Iterator[str]:
    """The URL of the shop's API, found as the worker finds the app."""
    with shop.background("taskharbor api --port 0") as api:
        api.wait_for("http://")
        [found] = set(re.findall(r"http://127\.0\.0\.1:\d+", api.log()))
        yield found


def curl(shop: Shell, line: str) -> tuple[int, Any]:
    ran = shop.run(f"curl -s -w '\\n%{{http_code}}' {line}")
    assert ran.code == 0, ran
    body, _, code = ran.out.rpartition("\n")
    return int(code), json.loads(body)


def test_the_curl_of_the_readme_enqueues(shop: Shell, url: str) -> None:
    body = shlex.quote(json.dumps({"type": "thumbnail", "payload": {"picture": "nut.png"}}))

    code, job = curl(shop, f"-H 'Content-Type: application/json' -d {body} {url}/v1/jobs")

    assert code == 201, job
    assert (job["queue"], job["max_attempts"]) == ("images", 1)


def test_json_without_a_content_type_is_a_415_that_says_what_to_send(shop: Shell, url: str) -> None:
    code, problem = curl(shop, f'-d \'{{"type": "thumbnail"}}\' {url}/v1/jobs')

    assert code == 415, problem
    assert "Content-Type: application/json" in problem["detail"]


@pytest.mark.parametrize(
    "body", ["", "7", "[]", "{", '{"type": 7}', '{"type": "thumbnail", "payload": {"picture": 7}}']
)
def test_no_message_begins_with_a_colon(body: str, shop: Shell, url: str) -> None:
    code, problem = curl(shop, f"-X POST -H 'Content-Type: application/json' -d {shlex.quote(body)} {url}/v1/jobs")

    assert 400 <= code < 500, problem
    assert problem["detail"].strip()
    assert not problem["detail"].startswith(":")


def test_a_payload_that_the_task_does_not_take_is_a_422_with_a_pointer(shop: Shell, url: str) -> None:
    body = shlex.quote(json.dumps({"type": "thumbnail", "payload": {"picture": "nut.png", "width": "wide"}}))

    code, problem = curl(shop, f"-H 'Content-Type: application/json' -d {body} {url}/v1/jobs")

    assert code == 422
    assert "/payload/width" in json.dumps(problem)


def test_a_misspelled_type_names_the_nearest(shop: Shell, url: str) -> None:
    body = shlex.quote(json.dumps({"type": "thumbnial", "payload": {"picture": "nut.png"}}))

    code, problem = curl(shop, f"-H 'Content-Type: application/json' -d {body} {url}/v1/jobs")

    assert code == 422
    assert "did you mean 'thumbnail'?" in problem["detail"]
