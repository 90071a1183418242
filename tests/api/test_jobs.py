"""Creating and reading jobs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.outcome import Outcome
from taskharbor.core.request import JobRequest
from tests.support.api_rig import MISSING_ID, opened, problem

if TYPE_CHECKING:
    from tests.support.api_rig import ApiRig


def test_a_created_job_is_stored_and_returned_with_its_location(site: ApiRig) -> None:
    made = site.post("/v1/jobs", {"type": "greet", "payload": {"name": "Ada"}, "queue": "mail", "priority": -1})

    assert made.status_code == 201
    body = made.json()
    assert (body["type"], body["queue"], body["priority"], body["status"]) == ("greet", "mail", -1, "PENDING")
    assert body["payload"] == {"name": "Ada"}
    assert made.headers["location"] == body["links"]["self"] == f"/v1/jobs/{body['id']}"
    found = site.get(made.headers["location"])
    assert found.status_code == 200
    assert found.headers["etag"] == made.headers["etag"]
    assert found.json()["id"] == body["id"]


def test_every_field_of_a_job_reaches_the_store(site: ApiRig) -> None:
    fields = {
        "type": "greet",
        "scheduled_for": "2100-01-01T12:00:00+02:00",
        "timeout": 1.5,
        "max_attempts": 3,
        "priority": 7,
        "idempotency_key": "k",
        "metadata": {"tenant": "acme"},
    }

    body = site.post("/v1/jobs", fields).json()

    assert body["scheduled_for"] == "2100-01-01T10:00:00Z"
    assert {name: body[name] for name in fields if name != "scheduled_for"} == {
        name: value for name, value in fields.items() if name != "scheduled_for"
    }


def test_a_delay_is_counted_by_the_stores_clock(site: ApiRig) -> None:
    before = site.driver.inspector.now()

    job_id = site.create(delay=3600)

    found = site.get(f"/v1/jobs/{job_id}").json()
    assert found["scheduled_for"] >= (before + timedelta(hours=1)).isoformat()[:19]
    assert found["wait_seconds"] == 0


@pytest.mark.parametrize("in_header", [True, False])
def test_a_repeat_under_the_same_key_is_answered_with_the_first_job(site: ApiRig, in_header: bool) -> None:
    def send() -> Any:
        body = {"type": "greet", "payload": 1} | ({} if in_header else {"idempotency_key": "k"})
        return site.post("/v1/jobs", body, headers={"Idempotency-Key": "k"} if in_header else {})

    first, second = send(), send()

    assert (first.status_code, second.status_code) == (201, 200)
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert first.json()["id"] == second.json()["id"]
    assert len(site.audited()) == 1


def test_the_same_key_with_another_body_is_refused_and_names_the_holder(site: ApiRig) -> None:
    first = site.create(payload=1, idempotency_key="k")

    refused = site.post("/v1/jobs", {"type": "greet", "payload": 2, "idempotency_key": "k"})

    assert refused.status_code == 422
    body = problem(refused)
    assert (body["code"], body["job_id"]) == ("idempotency-conflict", first)


def test_a_key_in_the_header_and_another_in_the_body_are_refused(site: ApiRig) -> None:
    refused = site.post("/v1/jobs", {"type": "greet", "idempotency_key": "a"}, headers={"Idempotency-Key": "b"})

    assert refused.status_code == 422
    assert problem(refused)["errors"][0]["pointer"] == "/idempotency_key"


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"type": "no spaces"}, "/type"),
        ({"type": 7}, "/type"),
        ({}, "/type"),
        ({"type": "greet", "queue": "a/b"}, "/queue"),
        ({"type": "greet", "priority": 40_000}, "/priority"),
        ({"type": "greet", "priority": "7"}, "/priority"),
        ({"type": "greet", "priority": True}, "/priority"),
        ({"type": "greet", "max_attempts": 0}, "/max_attempts"),
        ({"type": "greet", "delay": -1}, "/delay"),
        ({"type": "greet", "delay": 1e300}, "/delay"),
        ({"type": "greet", "timeout": 0}, "/timeout"),
        ({"type": "greet", "scheduled_for": "tomorrow"}, "/scheduled_for"),
        ({"type": "greet", "scheduled_for": "2030-01-01T00:00:00"}, "/scheduled_for"),
        ({"type": "greet", "scheduled_for": 1_900_000_000}, "/scheduled_for"),
        ({"type": "greet", "scheduled_for": "2030-02-30T00:00:00Z"}, "/scheduled_for"),
        ({"type": "greet", "scheduled_for": "9999-12-31T23:59:59Z"}, "/scheduled_for"),
        ({"type": "greet", "scheduled_for": "2030-01-01T00:00:00Z", "delay": 1}, "/delay"),
        ({"type": "greet", "metadata": {"a": 1}}, "/metadata/a"),
        ({"type": "greet", "metadata": {"a/b~": 1}}, "/metadata/a~1b~0"),
        ({"type": "greet", "idempotency_key": ""}, "/idempotency_key"),
        ({"type": "greet", "idempotency_key": "a\0b"}, "/idempotency_key"),
        ({"type": "greet", "run_at": 1}, "/run_at"),
    ],
    ids=repr,
)
def test_an_invalid_field_is_reported_with_its_pointer(site: ApiRig, fields: dict[str, Any], pointer: str) -> None:
    refused = site.post("/v1/jobs", fields)

    assert refused.status_code == 422
    assert pointer in [each["pointer"] for each in problem(refused)["errors"]]
    assert site.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"type": "greet", "payload": NaN}',
        b'{"type": "greet", "payload": 1e999}',
        b'{"type": "greet", "type": "other"}',
        b'{"type": "greet", "payload": "\\ud800"}',
        b'{"type": "greet", "payload": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"type": "greet", "payload": ' + b"1" * 5_000 + b"}",
        b'{"type": "gr\xffeet"}',
        b"[" + b'{"a":1},' * 11_000 + b"1]",
    ],
    ids=lambda body: repr(body[:40]),
)
def test_a_body_that_is_not_strict_json_is_malformed(site: ApiRig, body: bytes) -> None:
    refused = site.post("/v1/jobs", content=body, headers={"content-type": "application/json"})

    assert refused.status_code in {400, 422}
    assert problem(refused)["code"] in {"malformed", "invalid-request"}


@pytest.mark.parametrize(
    "declared",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp"],
)
def test_a_body_that_is_not_declared_as_json_is_415(site: ApiRig, declared: str | None) -> None:
    headers = {} if declared is None else {"content-type": declared}

    refused = site.post("/v1/jobs", content=b'{"type": "greet"}', headers=headers)

    assert (refused.status_code, problem(refused)["code"]) == (415, "unsupported-media-type")
    assert (declared or "it has no Content-Type") in problem(refused)["detail"]
    assert "send 'Content-Type: application/json', as in curl --json" in problem(refused)["detail"]
    assert refused.headers["accept"] == "application/json"
    assert site.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize("declared", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"])
def test_a_body_that_is_declared_as_json_in_any_form_is_read(site: ApiRig, declared: str) -> None:
    made = site.post("/v1/jobs", content=b'{"type": "greet"}', headers={"content-type": declared})

    assert made.status_code == 201


def test_a_request_without_a_body_needs_no_content_type(site: ApiRig) -> None:
    assert site.post(f"/v1/jobs/{site.dead()}/requeue").status_code == 202


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'"greet"'])
def test_a_body_that_is_no_object_says_which_fields_are_required(site: ApiRig, body: bytes) -> None:
    refused = site.post("/v1/jobs", content=body, headers={"content-type": "application/json"})

    [error] = problem(refused)["errors"]
    assert (refused.status_code, error["pointer"]) == (422, "")
    assert error["detail"].startswith(
        "must be a JSON object; required fields: type; known fields: type, payload, queue,"
    )
    assert problem(refused)["detail"] == f"body: {error['detail']}"


def test_an_unknown_field_gets_a_suggestion(site: ApiRig) -> None:
    refused = site.post("/v1/jobs", {"type": "greet", "payloda": {}})

    assert problem(refused)["errors"] == [{"pointer": "/payloda", "detail": "unknown field; did you mean payload?"}]


def test_a_job_that_is_not_there_is_not_found(site: ApiRig) -> None:
    for path in ("", "/attempts", "/logs", "/why", "/events"):
        missing = site.get(f"/v1/jobs/{MISSING_ID}{path}")
        assert missing.status_code == 404
        assert problem(missing)["code"] == "job-not-found"


def test_what_is_no_id_is_refused(site: ApiRig) -> None:
    assert site.get("/v1/jobs/7").status_code == 422


def test_a_list_is_paged_newest_first_and_shows_no_payloads(site: ApiRig) -> None:
    ids = [site.create(payload=n) for n in range(5)]

    seen, cursor = [], None
    for _ in range(3):
        page = site.get("/v1/jobs", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
        seen += [job["id"] for job in page["jobs"]]
        assert not any("payload" in job for job in page["jobs"])
        cursor = page["next"]

    assert seen == ids[::-1]
    assert cursor is None


def test_jobs_created_between_pages_neither_repeat_nor_hide_others(site: ApiRig) -> None:
    ids = [site.create() for _ in range(4)]
    first = site.get("/v1/jobs", params={"limit": 2}).json()

    site.create()

    second = site.get("/v1/jobs", params={"limit": 2, "cursor": first["next"]}).json()
    assert [job["id"] for page in (first, second) for job in page["jobs"]] == ids[::-1]


def test_a_list_is_filtered_by_the_fields_of_jobs(site: ApiRig) -> None:
    plain = site.create()
    other = site.create(type="other", queue="mail", metadata={"tenant": "acme", "n": "1"})
    site.settle(site.take("mail"), Outcome.ack())

    def ids(**params: Any) -> list[str]:
        return [job["id"] for job in site.get("/v1/jobs", params=params).json()["jobs"]]

    assert ids(queue="mail") == ids(type="other") == ids(status="SUCCEEDED") == ids(tag="tenant=acme") == [other]
    assert ids(tag="tenant=acm") == ids(tag="n=") == []
    assert ids(status=["PENDING", "SUCCEEDED"]) == [other, plain]
    created = site.get(f"/v1/jobs/{other}").json()["created_at"]
    assert ids(since=created) == [other]
    assert ids(until=created) == [plain]


def test_a_search_finds_a_job_by_its_id_or_its_key(site: ApiRig) -> None:
    first = site.create(queue="a", idempotency_key="k")
    second = site.create(queue="b", idempotency_key="k")
    site.create(idempotency_key="kk")

    def ids(q: str) -> list[str]:
        return [job["id"] for job in site.get("/v1/jobs", params={"q": q}).json()["jobs"]]

    assert ids(first) == [first]
    assert {*ids("k")} == {first, second}
    assert ids("nothing") == []


@pytest.mark.parametrize(
    "params",
    [
        {"limit": 0},
        {"limit": 201},
        {"limit": "many"},
        {"cursor": "short"},
        {"status": "DONE"},
        {"since": "yesterday"},
        {"tag": "no value"},
        {"queue": "a b"},
        {"q": "k", "queue": "default"},
        {"q": ""},
    ],
    ids=repr,
)
def test_an_invalid_filter_is_rejected(site: ApiRig, params: dict[str, Any]) -> None:
    refused = site.get("/v1/jobs", params=params)

    assert refused.status_code == 422
    assert problem(refused)["errors"]


def test_a_cursor_of_any_kind_is_no_error(site: ApiRig) -> None:
    assert site.get("/v1/jobs", params={"cursor": "A" * 22}).status_code == 200


def test_a_dead_job_is_returned_with_its_attempts_and_error(site: ApiRig) -> None:
    job_id = site.dead()

    body = site.get(f"/v1/jobs/{job_id}").json()
    [attempt] = site.get(f"/v1/jobs/{job_id}/attempts").json()["attempts"]

    assert body["error"] == {"type": "ValueError", "message": "boom", "fingerprint": "f00d"}
    assert body["dead"]["reason"] == "hopeless"
    assert body["actions"] == ["requeue"]
    assert (attempt["outcome"], attempt["worker"], attempt["error"]["traceback"]) == ("FAILED", "w", "Traceback …")


def test_why_returns_what_a_job_is_waiting_for(site: ApiRig) -> None:
    job_id = site.create()

    answer = site.get(f"/v1/jobs/{job_id}/why").json()

    assert (answer["cause"], answer["status"]) == ("unhandled", "PENDING")


def test_a_wait_ends_as_soon_as_the_job_does(site: ApiRig) -> None:
    job_id = site.create()
    claim = site.take()

    async def wait() -> Any:
        waiting = asyncio.ensure_future(site.client.get(f"/v1/jobs/{job_id}", params={"wait": 30}))
        await asyncio.sleep(0.05)
        site.settle(claim, Outcome.ack(b'"done"'))
        return await waiting

    body = site.run(wait()).json()

    assert (body["status"], body["result"]) == ("SUCCEEDED", "done")


def test_a_wait_that_is_too_short_shows_the_job_as_it_is(site: ApiRig) -> None:
    job_id = site.create()

    body = site.get(f"/v1/jobs/{job_id}", params={"wait": 0.05})

    assert (body.status_code, body.json()["status"]) == (200, "PENDING")


def test_no_wait_is_longer_than_a_minute(site: ApiRig) -> None:
    job_id = site.create()

    assert site.get(f"/v1/jobs/{job_id}", params={"wait": 61}).status_code == 422
    assert site.get(f"/v1/jobs/{job_id}", params={"wait": "inf"}).status_code == 422


def test_what_python_enqueued_with_dates_and_bytes_is_shown_in_its_json_form(site: ApiRig) -> None:
    job_id = site.backend.client.enqueue(JobRequest(type="greet", payload={"in": b"hi", "n": 1})).id

    assert site.get(f"/v1/jobs/{job_id}").json()["payload"] == {"in": {"$bytes": "aGk="}, "n": 1}


def test_a_running_job_shows_its_lease_without_the_token(site: ApiRig) -> None:
    job_id = site.create()
    claim = site.take()

    shown = site.get(f"/v1/jobs/{job_id}")

    assert shown.json()["lease"]["worker"] == "w"
    assert str(claim.lease.token) not in shown.text


def test_two_creates_at_once_make_two_jobs(site: ApiRig) -> None:
    async def both() -> list[Any]:
        return await asyncio.gather(*(site.client.post("/v1/jobs", json={"type": "greet"}) for _ in range(50)))

    made = site.run(both())

    assert {each.status_code for each in made} == {201}
    assert len({each.json()["id"] for each in made}) == 50
    assert len(site.audited()) == 50


def test_a_body_that_is_too_large_is_refused_without_reading_it_all() -> None:
    with opened(max_body=1_000) as site:
        read = []

        async def endless() -> Any:
            for _ in range(1_000):
                read.append(1)
                yield b"x" * 100

        refused = site.post("/v1/jobs", content=endless(), headers={"content-type": "application/json"})

    assert refused.status_code == 413
    assert problem(refused)["code"] == "payload-too-large"


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read() -> None:
    with opened(max_body=1_000) as site:
        refused = site.post("/v1/jobs", {"type": "greet", "payload": "x" * 1_000})

        assert refused.status_code == 413
        assert site.post("/v1/jobs", {"type": "greet", "payload": "x" * 900}).status_code == 201


def test_a_job_without_captured_lines_has_none(site: ApiRig) -> None:
    assert site.get(f"/v1/jobs/{site.create()}/logs").json() == {"logs": []}
