"""Bulk operations: previewed, created, performed by a janitor, listed and stopped."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import MemoryDriver
from taskharbor.operations import OperationRunner
from taskharbor.testing.clock import ManualClock
from tests.support.api_rig import MISSING_ID, opened, problem

if TYPE_CHECKING:
    from tests.support.api_rig import ApiRig


def perform_all(site: ApiRig) -> None:
    """Perform the steps of all operations that are due."""
    runner = OperationRunner(site.driver, time.monotonic)
    while runner.tick() == timedelta(0):
        pass


def statuses(site: ApiRig, *job_ids: str) -> list[str]:
    return [site.get(f"/v1/jobs/{job_id}").json()["status"] for job_id in job_ids]


def test_an_operation_is_accepted_and_performed(site: ApiRig) -> None:
    wanted, other = site.dead(type="email.send"), site.dead()

    made = site.post(
        "/v1/operations",
        {"kind": "requeue", "filter": {"type": "email.send"}, "reason": "fixed", "budget": 2, "start_in": 0},
    )
    view = made.json()
    perform_all(site)

    assert (made.status_code, view["state"], view["matched"], view["left"]) == (202, "waiting", 1, 1)
    assert made.headers["location"] == view["links"]["self"] == f"/v1/operations/{view['id']}"
    assert view["filter"] == {"type": "email.send", "statuses": ["DEAD"]}
    assert statuses(site, wanted, other) == ["PENDING", "DEAD"]
    done = site.get(view["links"]["self"]).json()
    assert (done["state"], done["done"], done["refused"], done["left"]) == ("done", 1, {}, None)
    assert [(each.action, each.target) for each in site.audited()][-2:] == [
        ("operations.create", view["id"]),
        ("operations.end", view["id"]),
    ]


def test_an_operation_is_undone_by_stopping_it_before_its_start(site: ApiRig) -> None:
    job_id = site.dead()
    view = site.post("/v1/operations", {"kind": "requeue", "ids": [job_id]}).json()

    stopped = site.post(view["links"]["stop"])
    perform_all(site)

    assert view["starts_at"] is not None
    assert (stopped.status_code, stopped.json()["state"], stopped.json()["started_at"]) == (200, "stopped", None)
    assert stopped.json()["stopped_by"] == "anonymous"
    assert statuses(site, job_id) == ["DEAD"]
    assert site.audited()[-1].action == "operations.stop"
    assert site.post(view["links"]["stop"]).json() == stopped.json()


def test_an_operation_starts_five_seconds_later_by_default() -> None:
    clock = ManualClock()
    with opened(MemoryDriver(clock=clock)) as site:
        job_id = site.create()
        site.post("/v1/operations", {"kind": "cancel", "filter": {}})

        seen = []
        for passed in (timedelta(seconds=4), timedelta(seconds=1)):
            clock.advance(passed)
            perform_all(site)
            seen += statuses(site, job_id)

        assert seen == ["PENDING", "CANCELED"]


def test_a_dry_run_counts_and_shows_jobs_and_stores_nothing(site: ApiRig) -> None:
    ids = [site.dead() for _ in range(7)]

    answer = site.post("/v1/operations", {"kind": "requeue", "filter": {}, "dry_run": True})

    preview = answer.json()
    assert (answer.status_code, preview["matched"], preview["is_capped"]) == (200, 7, False)
    assert [job["id"] for job in preview["sample"]] == ids[:1:-1]
    assert site.get("/v1/operations").json() == {"operations": [], "next": None}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"kind": "cancel"}, "CANCELED"),
        ({"kind": "reschedule", "delay": 60}, "PENDING"),
        ({"kind": "reschedule", "priority": -5}, "PENDING"),
    ],
)
def test_waiting_jobs_of_a_filter_are_changed(body: dict[str, Any], status: str, site: ApiRig) -> None:
    job_id = site.create(metadata={"tenant": "acme"})
    other = site.create()
    before = site.get(f"/v1/jobs/{other}").json()

    filtered = {"filter": {"tag": "tenant=acme", "statuses": ["PENDING", "FAILED"]}, "start_in": 0}
    view = site.post("/v1/operations", body | filtered).json()
    perform_all(site)

    job = site.get(f"/v1/jobs/{job_id}").json()
    assert (view["matched"], view["filter"]["tag"]) == (1, "tenant=acme")
    assert job["status"] == status
    assert job["priority"] == body.get("priority", 0)
    assert (job["scheduled_for"] > before["scheduled_for"]) == ("delay" in body)
    assert site.get(f"/v1/jobs/{other}").json() | {"wait_seconds": 0} == before | {"wait_seconds": 0}


def test_a_purge_needs_the_scope_admin() -> None:
    with opened(needs_keys=True) as site:
        control, admin = ({"Authorization": f"Bearer {site.key(scope)}"} for scope in ("jobs:control", "admin"))
        body = {"kind": "purge", "filter": {}}

        refused = site.post("/v1/operations", body, headers=control)
        accepted = site.post("/v1/operations", body, headers=admin)

        assert (refused.status_code, problem(refused)["scope"]) == (403, "admin")
        assert accepted.status_code == 202


def test_a_repeat_with_the_same_key_returns_the_first_operation(site: ApiRig) -> None:
    body = {"kind": "requeue", "ids": [site.dead()], "rate": 5}
    headers = {"Idempotency-Key": "nightly-7"}

    first = site.post("/v1/operations", body, headers=headers)
    again = site.post("/v1/operations", body, headers=headers)
    other = site.post("/v1/operations", body | {"rate": 6}, headers=headers)

    assert (first.status_code, again.status_code) == (202, 200)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == first.json()
    assert (other.status_code, problem(other)["code"]) == (422, "idempotency-conflict")
    assert len(site.get("/v1/operations").json()["operations"]) == 1


def test_operations_are_listed_newest_first_by_pages(site: ApiRig) -> None:
    made = [site.post("/v1/operations", {"kind": "cancel", "filter": {}}).json()["id"] for _ in range(3)]

    first = site.get("/v1/operations", params={"limit": 2}).json()
    second = site.get("/v1/operations", params={"limit": 2, "cursor": first["next"]}).json()

    assert [each["id"] for each in first["operations"] + second["operations"]] == made[::-1]
    assert second["next"] is None


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"kind": "requeue"}, "/filter"),
        ({"kind": "requeue", "filter": {}, "ids": [MISSING_ID]}, "/filter"),
        ({"kind": "purge", "filter": {"statuses": ["PENDING"]}}, "/filter/statuses"),
        ({"kind": "cancel", "filter": {}, "budget": 2}, "/budget"),
        ({"kind": "cancel", "filter": {}, "delay": 2}, "/delay"),
        ({"kind": "requeue", "filter": {}, "priority": 2}, "/priority"),
        ({"kind": "requeue", "filter": {}, "delay": 1, "scheduled_for": "2030-01-01T00:00:00Z"}, "/delay"),
        ({"kind": "reschedule", "filter": {}}, "/delay"),
        ({"kind": "explode", "filter": {}}, "/kind"),
        ({"kind": "cancel", "filter": {"statuses": ["LOST"]}}, "/filter/statuses/0"),
    ],
)
def test_an_operation_that_makes_no_sense_is_refused(body: dict[str, Any], pointer: str, site: ApiRig) -> None:
    refused = site.post("/v1/operations", body)

    assert refused.status_code == 422
    assert [each["pointer"] for each in problem(refused)["errors"]] == [pointer]
    assert site.get("/v1/operations").json()["operations"] == []


def test_an_unknown_operation_is_not_found(site: ApiRig) -> None:
    for answer in (site.get(f"/v1/operations/{MISSING_ID}"), site.post(f"/v1/operations/{MISSING_ID}/stop")):
        assert (answer.status_code, problem(answer)["code"]) == (404, "operation-not-found")
