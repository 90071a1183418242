"""Lists, waits and streams read no payloads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.api import sse
from taskharbor.core.model import JobSummary
from taskharbor.core.outcome import Outcome
from taskharbor.drivers.postgres import rows as postgres_rows
from taskharbor.drivers.sqlite import rows as sqlite_rows
from tests.support.api_rig import bearer, opened
from tests.support.streams import Stream
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.api_rig import ApiRig


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "POLL_SECONDS", 0.02)


def refuse_payloads(site: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_job_ids: Any) -> Any:
        pytest.fail("payloads were read")

    monkeypatch.setattr(site.driver.inspector, "get", refuse)


@pytest.mark.parametrize(
    "path", ["/v1/jobs", "/v1/jobs?q={id}", "/v1/jobs?q=k", "/v1/dead-letters", "/v1/jobs/{id}/why"]
)
def test_a_list_reads_no_payloads(site: ApiRig, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    job_id = site.dead(payload="secret", idempotency_key="k")
    refuse_payloads(site, monkeypatch)

    answer = site.get(path.format(id=job_id))

    assert answer.status_code == 200
    assert job_id in answer.text


def test_a_job_is_read_without_its_payload_for_a_key_that_may_not_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(needs_keys=True) as site:
        key = bearer(site.key("jobs:read", "jobs:write", "jobs:control"))
        refuse_payloads(site, monkeypatch)
        made = site.post("/v1/jobs", {"type": "greet", "payload": "secret"}, headers=key)
        path = f"/v1/jobs/{made.json()['id']}"
        answers = [
            made,
            site.get(path, headers=key),
            site.get(f"{path}/attempts", headers=key),
            site.post(f"{path}/reschedule", {"priority": 1}, headers=key),
        ]

    assert [answer.status_code for answer in answers] == [201, 200, 200, 200]
    assert not any("payload" in answer.text for answer in answers)


def test_a_wait_reads_no_payload_before_the_job_has_ended(site: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = site.create(payload="secret")
    read_at: list[str] = []
    whole = site.driver.inspector.get

    def get(job_ids: Any) -> Any:
        jobs = whole(job_ids)
        read_at.extend(job.status.value for job in jobs.values())
        return jobs

    monkeypatch.setattr(site.driver.inspector, "get", get)

    async def wait() -> Any:
        waiting = asyncio.create_task(site.client.get(f"/v1/jobs/{job_id}?wait=30"))
        await asyncio.to_thread(wait_until, lambda: site.app.state.taskharbor.open.count)
        site.settle(site.take(), Outcome.ack())
        return (await waiting).json()

    assert site.run(wait())["payload"] == "secret"
    assert read_at == ["SUCCEEDED"]


def test_streams_read_no_payloads(site: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = site.create(payload="secret")
    refuse_payloads(site, monkeypatch)

    async def follow() -> list[str]:
        async with Stream(site, f"/v1/jobs/{job_id}/events") as one, Stream(site, "/v1/events") as all_jobs:
            names = [(await one.next())[0], (await all_jobs.next())[0]]
            site.take()
            return [*names, (await one.next())[0], (await all_jobs.next())[0]]

    assert site.run(follow()) == ["job", "queues", "job", "job"]


def test_the_statements_of_lists_name_neither_payload_nor_result() -> None:
    columns = {*JobSummary.__slots__}

    assert {
        name.strip().removeprefix("job.").removesuffix("::text") for name in postgres_rows.SUMMARY.split(",")
    } == columns
    assert {name.strip() for name in sqlite_rows.SUMMARY.split(",")} == columns
