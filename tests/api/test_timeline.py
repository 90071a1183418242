"""Timelines, filters and counts of jobs, the next jobs of a queue, and workers."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from taskharbor import job_counts
from taskharbor.core.ids import JobId
from taskharbor.core.model import WorkerRecord
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import scan_limit
from taskharbor.testing.conformance.subject import new_job
from tests.support.api_rig import MISSING_ID, problem

if TYPE_CHECKING:
    import pytest

    from tests.support.api_rig import ApiRig


def ids(site: ApiRig, path: str = "/v1/jobs", **params: Any) -> list[str]:
    return [job["id"] for job in site.get(path, params=params).json()["jobs"]]


def start_worker(site: ApiRig, worker_id: str = "w") -> None:
    record = WorkerRecord(
        id=worker_id,
        host="box",
        pid=7,
        queues=("default",),
        types=("greet",),
        concurrency=4,
        busy_slots=1,
        started_at=site.driver.inspector.now(),
    )
    site.driver.maintenance.record_worker(record)


def test_a_timeline_says_what_happened_and_who_did_it(site: ApiRig) -> None:
    job_id = site.dead(max_attempts=1)
    site.post(f"/v1/jobs/{job_id}/requeue", {"reason": "fixed", "payload": 1})
    site.post(f"/v1/jobs/{job_id}/reschedule", {"priority": -5})

    found = site.get(f"/v1/jobs/{job_id}/timeline").json()

    assert found["job_id"] == job_id
    entries = {entry["kind"]: entry for entry in found["entries"]}
    assert [*entries] == ["created", "attempt", "died", "requeued", "changed"]
    assert (entries["created"]["action"], entries["created"]["by"]) == ("jobs.enqueue", "anonymous")
    assert (entries["attempt"]["outcome"], entries["attempt"]["error"]["message"]) == ("FAILED", "boom")
    assert (entries["requeued"]["reason"], entries["requeued"]["detail"]) == ("fixed", {"payload": "replaced"})
    assert (entries["changed"]["action"], entries["changed"]["detail"]) == ("jobs.reschedule", {"priority": "-5"})
    assert site.get(f"/v1/jobs/{job_id}").json()["links"]["timeline"] == f"/v1/jobs/{job_id}/timeline"


def test_the_timeline_of_an_unknown_job_is_404(site: ApiRig) -> None:
    refused = site.get(f"/v1/jobs/{MISSING_ID}/timeline")

    assert (refused.status_code, problem(refused)["code"]) == (404, "job-not-found")


def test_jobs_are_listed_by_worker_schedule_and_fingerprint(site: ApiRig) -> None:
    site.create()
    scheduled = site.create(queue="mail", metadata={"schedule": "nightly"})
    dead = site.dead(queue="other")

    assert ids(site, schedule="nightly") == [scheduled]
    assert ids(site, worker="w") == [dead]
    assert ids(site, fingerprint="f00d") == [dead]
    assert ids(site, worker="w", queue="mail") == []


def test_a_job_is_found_by_the_first_digits_of_its_id(site: ApiRig) -> None:
    wanted, near = (
        JobId(UUID("0199a1ff-0000-7000-8000-000000000001")),
        JobId(UUID("0199a1fe-0000-7000-8000-000000000001")),
    )
    site.driver.insert([new_job(id=wanted), new_job(id=near)])
    keyed = site.create(idempotency_key="0199a1ff")

    assert ids(site, q="0199a1ff") == [str(wanted), keyed]
    assert ids(site, q="0199A1FF-0000-7000") == [str(wanted)]
    assert ids(site, q=str(wanted)) == [str(wanted)]
    assert ids(site, q="0199a1f") == []


def test_a_list_explains_each_job_if_asked(site: ApiRig) -> None:
    waiting, later = site.create(), site.create(delay=3600)
    dead = site.dead(queue="other")

    listed = site.get("/v1/jobs", params={"explain": True}).json()["jobs"]
    named = site.get("/v1/jobs", params={"explain": True, "q": later}).json()["jobs"]

    causes = {job["id"]: job["why"]["cause"] for job in listed}
    assert causes == {waiting: "unhandled", later: "not-due", dead: "final"}
    assert named == [job for job in listed if job["id"] == later]
    assert listed == [job | {"why": site.get(job["links"]["why"]).json()} for job in listed]
    assert "why" not in site.get("/v1/jobs").json()["jobs"][0]


def test_a_page_says_how_far_back_it_has_looked(site: ApiRig) -> None:
    oldest = site.create()
    site.driver.insert([new_job() for _ in range(scan_limit(50) + 1)])

    page = site.get("/v1/jobs", params={"queue": "mail"}).json()
    last = site.get("/v1/jobs", params={"queue": "mail", "cursor": page["next"]}).json()

    assert page["looked_back_to"] >= site.get(f"/v1/jobs/{oldest}").json()["created_at"][:19]
    assert (page["jobs"], last["jobs"], last["next"], last["looked_back_to"]) == ([], [], None, None)


def test_a_count_is_exact_or_says_that_it_is_not(site: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    site.driver.insert([new_job(queue="mail") for _ in range(3)])
    site.driver.insert([new_job() for _ in range(2 * scan_limit(1))])

    def count(**params: Any) -> tuple[int, bool, bool]:
        found = site.get("/v1/jobs/count", params=params).json()
        return found["count"], found["is_exact"], found["looked_back_to"] is None

    assert count(queue="mail") == (3, True, True)
    assert count(queue="mail", cap=3) == (3, True, True)
    assert count(queue="mail", cap=2) == (2, False, True)
    assert count(cap=1_500) == (1_500, False, False)
    monkeypatch.setattr(job_counts, "MAX_LOOKS", 2)
    assert count(queue="mail") == (0, False, False)


def test_the_next_jobs_of_a_queue_are_listed_in_their_order(site: ApiRig) -> None:
    later, second, first = site.create(delay=60), site.create(), site.create(priority=-1)
    site.create(queue="mail")

    assert ids(site, "/v1/queues/default/next") == [first, second, later]
    assert ids(site, "/v1/queues/default/next", limit=1) == [first]
    assert ids(site, "/v1/queues/nothing/next") == []


def test_a_worker_is_shown_with_what_it_holds_and_what_was_lost_with_it(site: ApiRig) -> None:
    start_worker(site)
    lost, held = site.create(), site.create()
    for _ in range(2):
        site.take()
    site.driver.maintenance.report_clock_jump(
        expected=site.driver.inspector.now() + timedelta(hours=1), lease=timedelta(0)
    )
    site.driver.maintenance.expire(limit=1)

    found = site.get("/v1/workers/w").json()

    assert (found["id"], found["state"], found["busy_slots"], found["free_slots"]) == ("w", "live", 1, 3)
    assert [job["id"] for job in found["held"]] == [held]
    assert [(each["job_id"], each["status"], each["next"]) for each in found["lost"]] == [(lost, "FAILED", None)]
    assert not found["holds_more"]


def test_workers_that_stopped_are_listed_only_if_asked(site: ApiRig) -> None:
    for worker_id in ("stopped", "v"):
        start_worker(site, worker_id)
    site.driver.maintenance.remove_worker("stopped")

    default, everything = (site.get("/v1/workers", params=params).json()["workers"] for params in ({}, {"all": True}))

    assert [each["id"] for each in default] == ["v"]
    assert [(each["id"], each["state"], each["stopped_at"] is None) for each in everything] == [
        ("stopped", "gone", False),
        ("v", "live", True),
    ]
    assert site.get("/v1/workers/stopped").json()["state"] == "gone"
    refused = site.get("/v1/workers/nothing")
    assert (refused.status_code, problem(refused)["code"]) == (404, "worker-not-found")


def test_a_job_that_runs_again_elsewhere_ends_the_story_of_its_loss(site: ApiRig) -> None:
    start_worker(site)
    job_id = site.create()
    site.take()
    site.driver.maintenance.report_clock_jump(
        expected=site.driver.inspector.now() + timedelta(hours=1), lease=timedelta(0)
    )
    site.driver.maintenance.expire(limit=1)
    site.settle(site.take(), Outcome.ack())

    [lost] = site.get("/v1/workers/w").json()["lost"]

    assert (lost["job_id"], lost["status"], lost["next"]["outcome"]) == (job_id, "SUCCEEDED", "SUCCEEDED")
