"""The API on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from taskharbor.core.outcome import Outcome
from taskharbor.drivers.postgres import PostgresDriver
from tests.support.api_rig import bearer, opened, problem
from tests.support.postgres import database
from tests.support.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.api_rig import ApiRig

_JSON: Final = {"Content-Type": "application/json"}


@contextmanager
def on_postgres(**options: Any) -> Iterator[ApiRig]:
    with database() as url, opened(PostgresDriver(url), **options) as site:
        yield site


@pytest.fixture
def stored() -> Iterator[ApiRig]:
    with on_postgres() as site:
        yield site


def test_a_job_can_be_created_requeued_and_canceled(stored: ApiRig) -> None:
    made = stored.post("/v1/jobs", {"type": "greet", "payload": {"é": [1, None]}, "metadata": {"tenant": "acme"}})
    path = made.headers["location"]
    etag = made.headers["etag"]
    assert stored.get(path).headers["etag"] == etag
    stored.settle(stored.take(), Outcome.fail("hopeless"))
    dead = stored.get(path).json()
    assert (dead["status"], dead["payload"], dead["actions"]) == ("DEAD", {"é": [1, None]}, ["requeue"])
    assert problem(stored.post(f"{path}/requeue", headers={"If-Match": etag}))["code"] == "stale-etag"
    assert stored.post(f"{path}/requeue", {"reason": "fixed"}).status_code == 202
    assert stored.post(f"{path}/cancel").json()["status"] == "CANCELED"
    assert [each["outcome"] for each in stored.get(f"{path}/attempts").json()["attempts"]] == ["FAILED", "REQUEUED"]
    assert stored.get(f"{path}/why").json()["cause"] == "final"
    assert [entry.action for entry in stored.audited()] == ["jobs.enqueue", "jobs.requeue", "jobs.cancel"]


def test_keys_and_pages_work_as_in_memory(stored: ApiRig) -> None:
    first = stored.create(payload=1, idempotency_key="k", metadata={"tenant": "acme"})
    rest = [stored.create(queue="mail") for _ in range(3)]

    replayed = stored.post("/v1/jobs", {"type": "greet", "payload": 1, "idempotency_key": "k"})
    refused = stored.post("/v1/jobs", {"type": "greet", "payload": 2, "idempotency_key": "k"})
    page = stored.get("/v1/jobs", params={"limit": 2}).json()
    following = stored.get("/v1/jobs", params={"limit": 2, "cursor": page["next"]}).json()

    assert (replayed.status_code, replayed.json()["id"], refused.status_code) == (200, first, 422)
    assert [job["id"] for each in (page, following) for job in each["jobs"]] == [*rest[::-1], first]
    assert [job["id"] for job in stored.get("/v1/jobs", params={"q": "k"}).json()["jobs"]] == [first]
    assert [job["id"] for job in stored.get("/v1/jobs", params={"tag": "tenant=acme"}).json()["jobs"]] == [first]


def test_many_creates_and_reads_at_once_are_all_answered(stored: ApiRig) -> None:
    async def crowd() -> list[Any]:
        made = await asyncio.gather(*(stored.client.post("/v1/jobs", json={"type": "greet"}) for _ in range(200)))
        return await asyncio.gather(*(stored.client.get(each.headers["location"]) for each in made))

    found = stored.run(crowd())

    assert {each.status_code for each in found} == {200}
    assert len({each.json()["id"] for each in found}) == 200


def test_dead_letters_are_grouped_and_requeued(stored: ApiRig) -> None:
    for _ in range(3):
        stored.dead()
    stored.roll_up()

    [group] = stored.get("/v1/dead-letters/groups").json()["groups"]
    wanted = {"filter": {"queue": group["queue"], "type": group["type"], "fingerprint": group["fingerprint"]}}
    done = stored.post("/v1/dead-letters/requeue", wanted | {"rate": 1}).json()

    assert (group["count"], done["requeued"], done["more"]) == (3, 3, False)
    assert stored.get("/v1/dead-letters").json()["jobs"] == []


def test_queues_schedules_and_statistics_are_returned(stored: ApiRig) -> None:
    stored.create()
    stored.settle(stored.take(), Outcome.ack())
    stored.roll_up()

    assert stored.post("/v1/queues/default/pause").json()["paused_by"] == "anonymous"
    assert stored.request("PUT", "/v1/schedules/n", json={"cron": "0 2 * * *", "type": "greet"}).status_code == 201
    assert stored.post("/v1/schedules/n/run").status_code == 201
    assert stored.get("/v1/stats").json()["counts"]["SUCCEEDED"] == 1
    assert stored.get("/v1/stats/timeseries").json()["points"][0]["value"] == 1
    assert stored.get("/v1/queues/default/scaling").json()["is_paused"]
    assert stored.get("/v1/workers").json() == {"workers": []}
    assert stored.get("/readyz").status_code == 200


def test_keys_grant_only_their_scopes() -> None:
    with on_postgres(needs_keys=True) as site:
        reader = bearer(site.key("jobs:read"))

        assert site.get("/v1/jobs", headers=reader).status_code == 200
        assert site.post("/v1/jobs", {"type": "greet"}, headers=reader).status_code == 403
        assert site.get("/v1/jobs").status_code == 401


def test_waits_and_streams_hold_no_connection_each() -> None:
    with database() as url, opened(PostgresDriver(url)) as site, psycopg.connect(url) as db:
        job_id = site.create()
        claim = site.take()

        async def crowd() -> tuple[int, list[Any]]:
            waits = [asyncio.ensure_future(site.client.get(f"/v1/jobs/{job_id}?wait=30")) for _ in range(300)]
            async with Stream(site, f"/v1/jobs/{job_id}/events") as stream:
                await stream.next()
                [connections] = db.execute(_CONNECTIONS).fetchone() or [0]
                site.settle(claim, Outcome.ack())
                return connections, await asyncio.gather(*waits)

        connections, answers = site.run(crowd())

    assert 1 < connections < 30
    assert {each.json()["status"] for each in answers} == {"SUCCEEDED"}


_CONNECTIONS: Final = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


def test_a_database_that_goes_away_is_503() -> None:
    with database() as url, opened(PostgresDriver(url)) as site:
        site.create()
        site.driver.close()

        answer = site.get("/v1/queues")

    assert answer.status_code == 503
    assert problem(answer)["code"] == "store-unavailable"


def test_text_that_no_store_accepts_is_no_error_of_the_server(stored: ApiRig) -> None:
    document = stored.get("/openapi.json").json()
    known = {name: stored.create() for name in ("job_id", "operation_id")}

    answers = {
        f"{method} {path} {body!r}": stored.request(method, path, content=json.dumps(body), headers=_JSON).status_code
        for method, path, body in _odd_calls(document, known)
    }

    assert len(answers) > 150
    assert {call: status for call, status in answers.items() if status >= 500} == {}


def _odd_calls(document: dict[str, Any], known: dict[str, str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield calls with NUL in their path or in a parameter, or with it and a lone surrogate in a field."""
    odd = "a\0\ud800"
    for path, operations in document["paths"].items():
        if path.endswith("/events"):
            continue  # a stream that only its client ends
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            example = content.get("example", {})
            called = re.sub(r"{(\w+)}", lambda name: known.get(name[1], "x"), path)
            yield method, re.sub(r"{\w+}", "a%00", path), example
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "query":
                    yield method, f"{called}?{parameter['name']}=a%3Da%00", example
            for name in _fields(document, content):
                for value in (odd, [odd], {odd: odd}, {"tag": f"a={odd}"}):
                    yield method, called, example | {name: value}


def _fields(document: dict[str, Any], content: dict[str, Any]) -> list[str]:
    schema = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    return [*document["components"]["schemas"].get(schema, {}).get("properties", ())]
