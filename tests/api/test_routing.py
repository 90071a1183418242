"""Checks of requests before the endpoint runs."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.api import routing, store
from taskharbor.dashboard import dashboard
from tests.support.api_rig import bearer, opened, problem
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    import httpx

    from tests.support.api_rig import ApiRig

LARGE: Final = "x" * store.MIN_OFFLOAD_BYTES


def post(site: ApiRig, path: str, body: str) -> httpx.Response:
    return site.request("POST", path, content=body.encode(), headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("colon", [":", " :", "\n\t :"])
def test_keys_are_counted_whatever_stands_before_the_colon(site: ApiRig, colon: str) -> None:
    keys = ",".join(f'"k{n}"{colon}1' for n in range(routing.MAX_KEYS + 1))

    refused = post(site, "/v1/jobs/batch", f'{{"jobs":[{{"type":"t","payload":{{{keys}}}}}]}}')

    assert (refused.status_code, problem(refused)["code"]) == (400, "malformed")
    assert "over 10,000 keys" in problem(refused)["detail"]


def test_colons_inside_of_text_are_no_keys(site: ApiRig) -> None:
    payload = '":' * routing.MAX_KEYS

    assert site.post("/v1/jobs", {"type": "t", "payload": payload}).json()["payload"] == payload


@pytest.mark.parametrize("value", ["1", '""', "[]", "{}"])
def test_a_body_with_too_many_values_is_refused(site: ApiRig, value: str) -> None:
    refused = post(site, "/v1/jobs/batch", f'{{"jobs":[{",".join([value] * (routing.MAX_VALUES + 1))}]}}')

    assert (refused.status_code, problem(refused)["code"]) == (400, "malformed")
    assert "over 50,000 values" in problem(refused)["detail"]


def test_a_body_with_too_many_fields_is_refused_once(site: ApiRig) -> None:
    refused = site.post("/v1/jobs", {f"field{n}": 1 for n in range(routing.MAX_FIELDS + 1)})

    assert problem(refused)["detail"].endswith("over 100 fields")


@pytest.mark.parametrize("step", ["check_json_limits", "strict_json"])
def test_a_large_body_is_parsed_outside_the_event_loop(
    site: ApiRig, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    threads = recorded(monkeypatch, routing, step)

    assert site.post("/v1/jobs", {"type": "t", "payload": LARGE}).status_code == 201
    assert threads == [False]

    assert site.post("/v1/jobs", {"type": "t"}).status_code == 201
    assert threads == [False, True]


def test_a_large_payload_is_encoded_and_shown_outside_the_event_loop(
    site: ApiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = recorded(monkeypatch, site.backend.codec, "encode")
    shown = recorded(monkeypatch, site.backend.client, "prepare")

    made = site.post("/v1/jobs", {"type": "t", "payload": LARGE})

    assert made.json()["payload"] == LARGE
    assert (encoded, shown) == ([False], [False])


def test_other_requests_are_answered_while_a_batch_is_prepared(site: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()
    prepare = site.backend.client.prepare

    def prepared(*args: Any) -> Any:
        begun.set()
        assert may_end.wait(LIMIT_SECONDS)
        return prepare(*args)

    monkeypatch.setattr(site.backend.client, "prepare", prepared)

    async def both() -> tuple[int, int]:
        body = json.dumps({"jobs": [{"type": "t"}]})
        headers = {"Content-Type": "application/json"}
        posting = asyncio.create_task(site.client.post("/v1/jobs/batch", content=body, headers=headers))
        assert await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
        live = await site.client.get("/livez")
        assert not posting.done()
        may_end.set()
        return live.status_code, (await posting).status_code

    assert site.run(both()) == (200, 200)


@pytest.mark.parametrize(
    "header", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Via", "X-Real-IP"]
)
def test_without_keys_what_came_through_a_proxy_is_refused(header: str) -> None:
    with opened(needs_keys=None, only_local_hosts=True) as keyless:
        refused = keyless.get("/v1/jobs", headers={header: "for=10.0.0.1"})

    assert (refused.status_code, problem(refused)["code"]) == (403, "proxied-without-keys")
    assert "taskharbor keys create" in problem(refused)["detail"]


def test_with_keys_or_own_authentication_a_proxy_is_accepted() -> None:
    forwarded = {"X-Forwarded-For": "10.0.0.1"}
    with opened(needs_keys=False) as own:
        assert own.get("/v1/jobs", headers=forwarded).status_code == 200
    with opened(needs_keys=None, only_local_hosts=True) as locked:
        key = bearer(locked.key("jobs:read"))
        assert locked.get("/v1/jobs", headers=forwarded | key).status_code == 200


def recorded(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[bool]:
    """Record for each call of *name* whether it runs in the thread of the event loop."""
    calls: list[bool] = []
    whole = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        calls.append(threading.current_thread() is threading.main_thread())
        return whole(*args, **options)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/batch", "/ui/login"])
def test_a_client_that_disconnects_in_its_body_is_no_error(path: str, caplog: pytest.LogCaptureFixture) -> None:
    messages = iter([{"type": "http.request", "body": b"key=", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def send(_message: Any) -> None:
        """The client does not read its response."""

    sent = {"host": "localhost", "origin": "http://localhost", "content-type": "application/x-www-form-urlencoded"}
    headers = [(name.encode(), value.encode()) for name, value in sent.items()]
    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "query_string": b"", "headers": headers}
    scope |= {"http_version": "1.1", "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1)}
    with opened(parts=[dashboard()]) as site:
        site.run(site.app(scope, receive, send))

    assert caplog.records == []
