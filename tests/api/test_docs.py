"""docs/http.md matches the API."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskharbor.api.problems import ERROR_STATUSES

if TYPE_CHECKING:
    from tests.support.api_rig import ApiRig

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PAGE: Final = (ROOT / "docs" / "http.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_documented_requests_return_the_documented_status(site: ApiRig) -> None:
    known = {"{id}": "", "{etag}": ""}
    sent = blocks("http")
    assert len(sent) > 8

    for block in sent:
        for name, value in known.items():
            block = block.replace(name, value)  # noqa: PLW2901  values from earlier responses
        head, *rest = block.strip().split("\n\n")
        body = rest[0] if len(rest) > 1 else ""
        first, *lines = head.splitlines()
        method, path = first.split()
        headers = dict(line.split(": ") for line in lines) | ({"Content-Type": "application/json"} if body else {})

        answer = site.request(method, path, content=body, headers=headers)

        assert f"# {answer.status_code}" == rest[-1], (block, answer.text)
        if "etag" in answer.headers:
            known = {"{id}": answer.json()["id"], "{etag}": answer.headers["etag"]}


def test_the_python_block_of_the_page_runs() -> None:
    for block in blocks("python"):
        exec(compile(block, "http.md", "exec"), {})


def test_every_code_of_a_refusal_is_on_the_page() -> None:
    codes = {each.code for each in ERROR_STATUSES.values()} - {"unexpected", "payload-not-decodable"}

    assert [code for code in codes if f"`{code}`" not in PAGE] == []
