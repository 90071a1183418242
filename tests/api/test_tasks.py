"""With an app, the API uses the options and the parameters of its tasks."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI

from taskharbor import Harbor
from taskharbor.api import create_app
from taskharbor.core.ids import JobId
from tests.support.api_rig import ApiRig, opened, problem
from tests.support.worker_rig import running_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.model import Job

ID = "01890a5d-ac96-774b-bcce-b302099a8057"


def shop() -> Harbor:
    harbor = Harbor("memory://")

    @harbor.task(
        type="email.send",
        aliases=("mail",),
        queue="mail",
        timeout=30,
        priority=-2,
        max_attempts=3,
        metadata={"team": "post"},
    )
    def send(to: str, order: UUID | None = None, days: dict[str, list[date]] | None = None) -> str:
        return f"{to} {order} {days}"

    @harbor.task
    def tick() -> None: ...

    return harbor


@pytest.fixture
def site() -> Iterator[ApiRig]:
    with opened() as made:
        made.backend.tasks |= shop().tasks
        yield made


def stored(site: ApiRig, response: Any) -> Job:
    assert response.status_code in {200, 201, 202}, response.text
    job_id = JobId(UUID(response.json()["id"]))
    return site.driver.inspector.get([job_id])[job_id]


def test_a_job_gets_the_options_of_its_task(site: ApiRig) -> None:
    job = stored(site, site.post("/v1/jobs", {"type": "email.send", "payload": {"to": "ada", "order": ID}}))

    assert (job.queue, job.timeout, job.priority, job.max_attempts) == ("mail", timedelta(seconds=30), -2, 3)
    assert (job.metadata, job.data) == ({"team": "post"}, {"to": "ada", "order": UUID(ID)})
    assert site.audited()[-1].detail == {"type": "email.send", "queue": "mail"}


def test_options_of_the_request_win_over_those_of_the_task(site: ApiRig) -> None:
    options = {"queue": "bulk", "timeout": 1, "priority": 0, "max_attempts": 1, "metadata": {"team": "ops", "a": "b"}}

    job = stored(site, site.post("/v1/jobs", {"type": "email.send", "payload": {"to": "ada"}, **options}))

    assert (job.queue, job.timeout, job.priority, job.max_attempts) == ("bulk", timedelta(seconds=1), 0, 1)
    assert job.metadata == {"team": "ops", "a": "b"}


def test_null_counts_as_absent(site: ApiRig) -> None:
    job = stored(site, site.post("/v1/jobs", {"type": "tick", "payload": None, "queue": None, "priority": None}))

    assert (job.queue, job.priority, job.data) == ("default", 0, {})


def test_an_alias_is_stored_as_it_was_given(site: ApiRig) -> None:
    job = stored(site, site.post("/v1/jobs", {"type": "mail", "payload": {"to": "ada"}}))

    assert (job.type, job.queue) == ("mail", "mail")


@pytest.mark.parametrize(
    ("payload", "errors"),
    [
        ({}, [("/payload/to", "required by task 'send'")]),
        (["ada"], [("/payload", "must be an object with the parameters of task 'send'")]),
        ({"to": 7}, [("/payload/to", "must be str, not int")]),
        ({"to": "a", "order": "x"}, [("/payload/order", f'must be a UUID, such as "{ID}"')]),
        (
            {"to": "a", "days": {"a.b/c'": ["2030-01-01", "soon"]}},
            [("/payload/days/a.b~1c'/1", 'must be a date in ISO 8601, such as "2030-01-01"')],
        ),
        (
            {"too": "a", "a/b": 1},
            [
                ("/payload/too", "task 'send' has no such parameter; did you mean 'to'?"),
                ("/payload/a~1b", "task 'send' has no such parameter; it takes to, order, days"),
                ("/payload/to", "required by task 'send'"),
            ],
        ),
    ],
)
def test_a_payload_that_the_task_does_not_take_is_422_with_pointers(
    site: ApiRig, payload: object, errors: list[tuple[str, str]]
) -> None:
    body = {"type": "email.send", "payload": payload}

    refused = [site.post("/v1/jobs", body), site.post("/v1/jobs/batch", {"jobs": [body], "atomic": True})]
    [result] = site.post("/v1/jobs/batch", {"jobs": [body]}).json()["results"]

    assert [(each.status_code, problem(each)["code"]) for each in refused] == [(422, "invalid-request")] * 2
    for found, prefix in zip([*map(problem, refused), result["problem"]], ["", "/jobs/0", ""], strict=True):
        assert [(each["pointer"].removeprefix(prefix), each["detail"]) for each in found["errors"]] == errors
    assert site.get("/v1/jobs").json()["jobs"] == []


def test_an_unknown_type_is_422_with_the_nearest_type(site: ApiRig) -> None:
    refused = problem(site.post("/v1/jobs", {"type": "email.sned"}))
    far = problem(site.post("/v1/jobs", {"type": "x"}))
    [result] = site.post("/v1/jobs/batch", {"jobs": [{"type": "email.sned"}]}).json()["results"]

    rule = "no task of the app has this type; did you mean 'email.send'?"
    assert (refused["status"], refused["code"]) == (422, "unknown-type")
    assert refused["errors"] == [{"pointer": "/type", "detail": rule}]
    assert far["errors"][0]["detail"].endswith("; known types: email.send, mail, tick")
    assert (result["status"], result["problem"]["code"]) == (422, "unknown-type")


def test_an_api_that_accepts_unknown_types_still_checks_known_ones() -> None:
    with opened(unknown_types="accept") as site:
        site.backend.tasks |= shop().tasks
        unknown = stored(site, site.post("/v1/jobs", {"type": "report", "payload": [1]}))
        known = site.post("/v1/jobs", {"type": "email.send"})

    assert (unknown.type, unknown.queue, unknown.data) == ("report", "default", [1])
    assert known.status_code == 422


def test_the_same_call_from_python_and_over_http_is_the_same_job() -> None:
    harbor = shop()
    send = harbor.tasks["email.send"]
    with opened(harbor.driver) as site:
        site.backend.tasks |= harbor.tasks
        first = send.using(idempotency_key="k").enqueue("ada", UUID(ID))
        again = site.post(
            "/v1/jobs", {"type": "email.send", "payload": {"to": "ada", "order": ID}, "idempotency_key": "k"}
        )

    assert (again.status_code, again.json()["id"]) == (200, str(first.id))


def test_a_worker_runs_what_the_api_accepts() -> None:
    harbor = shop()
    with opened(harbor.driver) as site:
        site.backend.tasks |= harbor.tasks
        payload = {"to": "ada", "order": ID, "days": {"a": ["2030-01-01"]}}
        job_id = site.post("/v1/jobs", {"type": "email.send", "payload": payload}).json()["id"]
        handlers = {type: task.handler() for type, task in harbor.tasks.items()}
        with running_worker(harbor.driver, handlers, queues=["mail"]):
            result = harbor.handle(JobId(UUID(job_id))).result(timeout=60)

    assert result == f"ada {ID} {{'a': [datetime.date(2030, 1, 1)]}}"


def test_a_new_payload_of_a_requeued_job_must_match_its_task(site: ApiRig) -> None:
    job_id = site.post("/v1/jobs", {"type": "email.send", "payload": {"to": "ada"}}).json()["id"]
    site.post(f"/v1/jobs/{job_id}/cancel")

    refused = site.post(f"/v1/jobs/{job_id}/requeue", {"payload": {"to": 7}})
    done = stored(site, site.post(f"/v1/jobs/{job_id}/requeue", {"payload": {"to": "bob", "order": ID}}))

    assert (refused.status_code, problem(refused)["errors"][0]["pointer"]) == (422, "/payload/to")
    assert done.data == {"to": "bob", "order": UUID(ID)}


def test_a_schedule_gets_the_options_of_its_task(site: ApiRig) -> None:
    path, cron = "/v1/schedules/nightly", "0 2 * * *"

    made = site.request("PUT", path, json={"cron": cron, "type": "email.send", "payload": {"to": "ada"}})
    refused = site.request("PUT", path, json={"cron": cron, "type": "email.send", "payload": {"to": 7}})
    unknown = site.request("PUT", path, json={"cron": cron, "type": "email.sned"})

    assert (made.status_code, made.json()["queue"]) == (201, "mail")
    assert problem(refused)["errors"] == [{"pointer": "/payload/to", "detail": "must be str, not int"}]
    assert problem(unknown)["code"] == "unknown-type"


def test_a_mounted_api_uses_the_tasks_of_its_harbor() -> None:
    app = FastAPI()
    app.mount("/background", create_app(shop(), needs_keys=False))

    async def post(**body: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.post("/background/v1/jobs", json=body)

    made = asyncio.run(post(type="email.send", payload={"to": "ada"}))
    refused = asyncio.run(post(type="email.sned"))

    assert (made.status_code, made.json()["queue"], refused.status_code) == (201, "mail", 422)
