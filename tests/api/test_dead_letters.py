"""Dead letters: lists, groups, and many lives at once."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api_rig import NOBODY, problem

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


def test_dead_letters_that_died_of_the_same_are_one_group(site: ApiRig) -> None:
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


def test_a_dry_run_tells_which_and_changes_nothing(site: ApiRig) -> None:
    dead = [site.dead() for _ in range(3)]

    told = site.post("/v1/dead-letters/requeue", {"filter": {"type": "greet"}, "dry_run": True}).json()

    assert (told["matched"], told["requeued"], told["dry_run"], told["ids"]) == (3, 0, True, dead)
    assert len(site.get("/v1/dead-letters").json()["jobs"]) == 3


def test_dead_letters_that_are_like_a_filter_live_again(site: ApiRig) -> None:
    site.dead()
    kept = site.dead(queue="mail")

    done = site.post("/v1/dead-letters/requeue", {"filter": {"queue": "default"}, "reason": "mended", "budget": 2})

    assert (done.status_code, done.json()["requeued"], done.json()["refused"]) == (200, 1, [])
    assert [job["id"] for job in site.get("/v1/dead-letters").json()["jobs"]] == [kept]
    last = site.audited()[-1]
    assert (last.action, last.target, last.detail) == ("dead-letters.requeue", "1 jobs", {"why": "mended"})


def test_what_cannot_live_again_is_told_and_the_others_do(site: ApiRig) -> None:
    dead, waiting = site.dead(), site.create()

    done = site.post("/v1/dead-letters/requeue", {"ids": [dead, waiting, NOBODY, dead]}).json()

    assert (done["matched"], done["requeued"]) == (3, 1)
    assert [(each["id"], each["problem"]["status"]) for each in done["refused"]] == [(waiting, 409), (NOBODY, 404)]


def test_a_rate_lets_them_come_due_a_few_at_a_time(site: ApiRig) -> None:
    dead = [site.dead() for _ in range(5)]

    site.post("/v1/dead-letters/requeue", {"filter": {}, "rate": 2})

    due = [datetime.fromisoformat(site.get(f"/v1/jobs/{each}").json()["scheduled_for"]) for each in dead]
    gaps = [round((later - earlier).total_seconds()) for earlier, later in pairwise(due)]
    assert gaps == [0, 1, 0, 1]


def test_what_is_over_the_limit_is_left_for_the_next_call(site: ApiRig) -> None:
    for _ in range(3):
        site.dead()

    first = site.post("/v1/dead-letters/requeue", {"filter": {}, "limit": 2}).json()
    second = site.post("/v1/dead-letters/requeue", {"filter": {}, "limit": 2}).json()

    assert (first["requeued"], first["more"]) == (2, True)
    assert (second["requeued"], second["more"]) == (1, False)


@pytest.mark.parametrize(
    "body", [{}, {"ids": [NOBODY], "filter": {}}, {"ids": []}, {"ids": ["x"]}, {"rate": 0}], ids=repr
)
def test_what_is_meant_must_be_said_in_one_way(site: ApiRig, body: dict[str, Any]) -> None:
    refused = site.post("/v1/dead-letters/requeue", body)

    assert refused.status_code == 422
    assert problem(refused)["code"] == "invalid-request"
