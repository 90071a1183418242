"""Dead letters: lists, groups and bulk requeue."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api_rig import MISSING_ID, problem

if TYPE_CHECKING:
    from tests.support.api_rig import ApiRig


def test_dead_letters_are_listed_and_filtered(site: ApiRig) -> None:
    first = site.dead()
    second = site.dead(type="other", queue="mail", metadata={"tenant": "acme"})
    site.create()

    def ids(**params: Any) -> list[str]:
        return [job["id"] for job in site.get("/v1/dead-letters", params=params).json()["jobs"]]

    assert ids() == ids(fingerprint="f00d") == [second, first]
    assert ids(queue="mail") == ids(type="other") == ids(tag="tenant=acme") == [second]
    assert ids(fingerprint="beef") == []


def test_dead_letters_with_the_same_error_form_one_group(site: ApiRig) -> None:
    for _ in range(3):
        site.dead()
    site.dead(queue="mail")
    site.roll_up()

    groups = site.get("/v1/dead-letters/groups").json()["groups"]

    assert [(each["queue"], each["count"], each["fingerprint"]) for each in groups] == [
        ("default", 3, "f00d"),
        ("mail", 1, "f00d"),
    ]
    assert [each["queue"] for each in site.get("/v1/dead-letters/groups?queue=mail").json()["groups"]] == ["mail"]
    assert len(site.get("/v1/dead-letters/groups?limit=1").json()["groups"]) == 1


def test_a_dry_run_returns_the_ids_and_changes_nothing(site: ApiRig) -> None:
    dead = [site.dead() for _ in range(3)]

    result = site.post("/v1/dead-letters/requeue", {"filter": {"type": "greet"}, "dry_run": True}).json()

    assert (result["matched"], result["requeued"], result["dry_run"], result["ids"]) == (3, 0, True, dead)
    assert len(site.get("/v1/dead-letters").json()["jobs"]) == 3


def test_dead_letters_that_match_a_filter_are_requeued(site: ApiRig) -> None:
    site.dead()
    kept = site.dead(queue="mail")

    done = site.post("/v1/dead-letters/requeue", {"filter": {"queue": "default"}, "reason": "fixed", "budget": 2})

    assert (done.status_code, done.json()["requeued"], done.json()["refused"]) == (200, 1, [])
    assert [job["id"] for job in site.get("/v1/dead-letters").json()["jobs"]] == [kept]
    last = site.audited()[-1]
    assert (last.action, last.target, last.detail) == ("dead-letters.requeue", "1 jobs", {"why": "fixed"})


def test_dead_letters_requeued_without_a_budget_get_their_own_attempts_again(site: ApiRig) -> None:
    one, three = site.dead(max_attempts=1), site.dead(max_attempts=3)

    site.post("/v1/dead-letters/requeue", {"filter": {}})

    assert [site.get(f"/v1/jobs/{job_id}").json()["max_attempts"] for job_id in (one, three)] == [1 + 1, 1 + 3]


def test_jobs_that_cannot_be_requeued_are_reported_and_others_are_requeued(site: ApiRig) -> None:
    dead, waiting = site.dead(), site.create()

    done = site.post("/v1/dead-letters/requeue", {"ids": [dead, waiting, MISSING_ID, dead]}).json()

    assert (done["matched"], done["requeued"]) == (3, 1)
    assert [(each["id"], each["problem"]["status"]) for each in done["refused"]] == [(waiting, 409), (MISSING_ID, 404)]


def test_a_rate_spreads_the_due_times(site: ApiRig) -> None:
    dead = [site.dead() for _ in range(5)]

    site.post("/v1/dead-letters/requeue", {"filter": {}, "rate": 2})

    due = [datetime.fromisoformat(site.get(f"/v1/jobs/{each}").json()["scheduled_for"]) for each in dead]
    gaps = [round((later - earlier).total_seconds()) for earlier, later in pairwise(due)]
    assert gaps == [0, 1, 0, 1]


def test_jobs_beyond_the_limit_are_left_for_the_next_call(site: ApiRig) -> None:
    for _ in range(3):
        site.dead()

    first = site.post("/v1/dead-letters/requeue", {"filter": {}, "limit": 2}).json()
    second = site.post("/v1/dead-letters/requeue", {"filter": {}, "limit": 2}).json()

    assert (first["requeued"], first["more"]) == (2, True)
    assert (second["requeued"], second["more"]) == (1, False)


@pytest.mark.parametrize(
    "body", [{}, {"ids": [MISSING_ID], "filter": {}}, {"ids": []}, {"ids": ["x"]}, {"rate": 0}], ids=repr
)
def test_a_bulk_requeue_needs_either_ids_or_a_filter(site: ApiRig, body: dict[str, Any]) -> None:
    refused = site.post("/v1/dead-letters/requeue", body)

    assert refused.status_code == 422
    assert problem(refused)["code"] == "invalid-request"
