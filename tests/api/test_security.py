"""Authentication, scopes, and requests from other origins."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.api.openapi import routes_of
from taskharbor.api.routing import ANY_KEY, PUBLIC
from taskharbor.api_keys import SCOPES
from taskharbor.core.log_lines import AttemptLines, LogLine
from taskharbor.core.outcome import Outcome
from tests.support.api_rig import MISSING_ID, bearer, opened, problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from taskharbor.api.routing import ApiRoute
    from tests.support.api_rig import ApiRig

STREAMS: Final = ("/v1/events",)  # does not end by itself; its scope is tested separately
OPEN: Final = {"/livez", "/readyz", "/openapi.json", "/docs"}
GOOD_BODIES: Final = {
    "/v1/jobs": {"type": "greet"},
    "/v1/jobs/batch": {"jobs": [{"type": "greet"}]},
    "/v1/jobs/{job_id}/reschedule": {"priority": 1},
    "/v1/dead-letters/requeue": {"ids": [MISSING_ID]},
    "/v1/operations": {"kind": "cancel", "ids": [MISSING_ID]},
    "/v1/schedules/{name}": {"cron": "0 2 * * *", "type": "greet"},
    "/v1/keys": {"name": "ci", "scopes": ["jobs:read"]},
}


@pytest.fixture
def locked() -> Iterator[ApiRig]:
    with opened(needs_keys=True) as site:
        yield site


def call(site: ApiRig, route: ApiRoute, headers: dict[str, str]) -> httpx.Response:
    path = route.path_format.format(job_id=MISSING_ID, name="nothing", operation_id=MISSING_ID, key_id="nothing")
    [method] = route.methods or {"GET"}
    body = GOOD_BODIES.get(route.path_format) if method in {"POST", "PUT"} else None
    return site.request(method, path, headers=headers, json=body)


def guarded(site: ApiRig) -> list[ApiRoute]:
    return [route for route in routes_of(site.app) if route.needs != PUBLIC and route.path_format not in STREAMS]


def test_every_route_has_a_scope_and_few_are_public(site: ApiRig) -> None:
    routes = routes_of(site.app)

    assert len(routes) == len(site.app.routes) >= 30
    assert {route.needs for route in routes} == {*SCOPES, PUBLIC, ANY_KEY}
    assert {route.path_format for route in routes if route.needs == PUBLIC} == OPEN


def test_every_route_rejects_requests_without_a_valid_key(locked: ApiRig) -> None:
    valid, revoked = locked.key("admin"), locked.key("admin")
    locked.driver.control.revoke_keys([revoked.split("_")[1]])
    expired = locked.key("admin", expires_at=locked.driver.inspector.now() - timedelta(seconds=1))
    wrong = [{}, bearer(""), bearer("thk_x"), bearer(valid[:-1] + "~"), bearer(revoked), bearer(expired)]
    wrong.append({"Authorization": f"Basic {valid}"})

    for headers in wrong:
        for route in routes_of(locked.app):
            if route.needs != PUBLIC:
                answer = call(locked, route, headers)
                assert answer.status_code == 401, (route.path, headers)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert problem(answer)["code"] == "unauthorized"


def test_every_route_accepts_only_its_scope_and_admin(locked: ApiRig) -> None:
    keys = {scope: bearer(locked.key(scope)) for scope in SCOPES}

    for route in guarded(locked):
        for scope, headers in keys.items():
            answer = call(locked, route, headers)
            if scope in {route.needs, "admin"} or route.needs == ANY_KEY:
                assert answer.status_code not in {401, 403}, (route.path, scope, answer.text)
            else:
                assert answer.status_code == 403, (route.path, scope)
                assert problem(answer)["scope"] == route.needs
                assert f'scope="{route.needs}"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_needs_its_scope_too(locked: ApiRig, path: str) -> None:
    assert locked.get(path, headers=bearer(locked.key("jobs:write"))).status_code == 403


def test_a_read_only_api_rejects_every_request_that_changes_something() -> None:
    with opened(needs_keys=True, read_only=True) as site:
        admin = bearer(site.key("admin"))
        for route in guarded(site):
            answer = call(site, route, admin)
            is_read = route.methods == {"GET"}
            assert (answer.status_code != 403) == is_read, (route.path, answer.text)
            assert is_read or problem(answer)["code"] == "read-only"
        assert site.get("/v1/me", headers=admin).json()["read_only"] is True


def test_public_paths_need_no_key(locked: ApiRig) -> None:
    for path in OPEN:
        assert locked.get(path).status_code == 200


def test_unauthorized_responses_do_not_reveal_whether_a_job_exists(locked: ApiRig) -> None:
    there = locked.post("/v1/jobs", {"type": "greet"}, headers=bearer(locked.key("jobs:write"))).json()["id"]

    answers = [locked.get(f"/v1/jobs/{each}").text for each in (there, MISSING_ID)]

    assert answers[0] == answers[1]


@pytest.mark.parametrize(("scopes", "sees"), [(["jobs:read"], False), (["jobs:read", "payload:read"], True)])
def test_payloads_and_results_are_shown_only_with_payload_read(locked: ApiRig, scopes: list[str], sees: bool) -> None:
    writer, reader = bearer(locked.key("jobs:write", "schedules:write")), bearer(locked.key(*scopes))
    made = locked.post("/v1/jobs", {"type": "greet", "payload": "canary"}, headers=writer)
    schedule = {"cron": "0 2 * * *", "type": "greet", "payload": "canary"}
    locked.request("PUT", "/v1/schedules/nightly", json=schedule, headers=writer)
    paths = [made.headers["location"], "/v1/schedules/nightly"]

    assert "canary" not in made.text
    assert ["canary" in locked.get(path, headers=reader).text for path in paths] == [sees, sees]
    assert "canary" not in locked.get("/v1/jobs", headers=reader).text
    assert "canary" not in locked.get("/v1/schedules", headers=reader).text


def test_replacing_a_payload_requires_jobs_write(locked: ApiRig) -> None:
    keys = [bearer(locked.key(*scopes)) for scopes in (["jobs:control"], ["jobs:control", "jobs:write"])]
    path = locked.post("/v1/jobs", {"type": "greet", "payload": 1}, headers=keys[1]).headers["location"]
    locked.post(f"{path}/cancel", headers=keys[0])

    refused, done = (locked.post(f"{path}/requeue", {"payload": "canary"}, headers=each) for each in keys)

    assert (refused.status_code, problem(refused)["scope"], done.status_code) == (403, "jobs:write", 202)
    assert "canary" not in done.text + repr(locked.audited())


def test_the_audit_names_the_key_and_never_its_secret(locked: ApiRig) -> None:
    key = locked.key("queues:control")

    locked.post("/v1/queues/mail/pause", headers=bearer(key))

    [entry] = locked.audited()
    assert entry.actor == f"key:{key.split('_')[1]} ci"
    assert key.split("_", 2)[2] not in repr(entry)


def test_no_secret_reaches_the_log(locked: ApiRig, caplog: pytest.LogCaptureFixture) -> None:
    key = locked.key("jobs:write")
    with caplog.at_level(logging.DEBUG, "taskharbor"):
        locked.post("/v1/jobs", {"type": "greet", "payload": "canary"}, headers=bearer(key))
        locked.post("/v1/jobs", {"type": "gr eet", "payload": "canary"}, headers=bearer(key))
        locked.post("/v1/jobs", content=b'{"canary', headers=bearer(key))

    assert "canary" not in caplog.text
    assert key not in caplog.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://["},
    ],
    ids=repr,
)
def test_without_keys_cross_origin_requests_are_rejected(site: ApiRig, headers: dict[str, str]) -> None:
    refused = site.post("/v1/queues/default/pause", headers=headers)

    assert refused.status_code == 403
    assert problem(refused)["code"] == "foreign-origin"
    assert site.audited() == []


def test_without_keys_same_origin_requests_are_accepted(site: ApiRig) -> None:
    assert site.post("/v1/queues/default/pause", headers={"Origin": "http://localhost"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:8000", 200), ("evil.example", 403), ("[", 403), ("", 403)],
)
def test_without_keys_only_names_of_this_machine_are_answered(host: str, status: int) -> None:
    with opened(only_local_hosts=True) as site:
        assert site.get("/v1/jobs", headers={"Host": host}).status_code == status


def test_no_cors_headers_are_sent_to_other_origins(site: ApiRig) -> None:
    answer = site.request("OPTIONS", "/v1/jobs", headers={"Origin": "https://evil.example"})

    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_the_page_of_docs_runs_no_script(site: ApiRig) -> None:
    page = site.get("/docs")

    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script" not in page.text
    assert "http" not in page.text.replace("HTTP", "")


@pytest.mark.parametrize("value", ["x" * 5_000, "é" * 50, "thk_" + "0" * 12 + "_" + "é" * 43])
def test_a_malformed_key_of_any_kind_is_401(locked: ApiRig, value: str) -> None:
    headers: Any = {"Authorization": f"Bearer {value}".encode()}

    assert locked.get("/v1/jobs", headers=headers).status_code == 401


def test_captured_log_lines_are_listed_with_the_scope_of_payloads(locked: ApiRig) -> None:
    reader, writer = bearer(locked.key("jobs:read")), bearer(locked.key("jobs:write"))
    job_id = locked.post("/v1/jobs", {"type": "greet"}, headers=writer).json()["id"]
    claim = locked.take()
    locked.settle(claim, Outcome.ack())
    line = LogLine(datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), "INFO", "shop", 'paid "Ada" \U0001f600')
    log = AttemptLines(job_id=claim.job.id, token=claim.lease.token, attempt=1, worker_id="w", dropped=7, lines=(line,))
    assert locked.driver.attempt_logs.save([log], keep=10) == [True]

    refused = locked.get(f"/v1/jobs/{job_id}/logs", headers=reader)
    [shown] = locked.get(f"/v1/jobs/{job_id}/logs", headers=bearer(locked.key("payload:read"))).json()["logs"]

    assert (refused.status_code, problem(refused)["scope"]) == (403, "payload:read")
    assert shown.pop("saved_at").endswith("Z")
    assert shown == {
        "attempt": 1,
        "worker": "w",
        "dropped": 7,
        "lines": [{"at": "2030-01-02T03:04:05Z", "level": "INFO", "logger": "shop", "text": 'paid "Ada" \U0001f600'}],
    }
