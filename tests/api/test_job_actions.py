"""Actions on one job: cancel, requeue, reschedule, and If-Match."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import Client
from taskharbor.core.outcome import Outcome
from taskharbor.crypto import AesGcmCodec
from tests.support.api_rig import MISSING_ID, opened, problem

if TYPE_CHECKING:
    from tests.support.api_rig import ApiRig


def test_a_waiting_job_is_canceled_at_once(site: ApiRig) -> None:
    job_id = site.create()

    done = site.post(f"/v1/jobs/{job_id}/cancel")

    assert (done.status_code, done.json()["status"]) == (200, "CANCELED")


def test_a_running_job_is_asked_to_stop(site: ApiRig) -> None:
    job_id = site.create()
    site.take()

    asked = site.post(f"/v1/jobs/{job_id}/cancel")

    assert (asked.status_code, asked.json()["status"]) == (202, "PROCESSING")
    assert asked.json()["cancel_requested_at"] is not None
    assert asked.json()["actions"] == []


def test_a_job_that_ended_cannot_be_canceled_and_the_answer_says_what_can_be_done(site: ApiRig) -> None:
    job_id = site.dead()

    refused = site.post(f"/v1/jobs/{job_id}/cancel")

    assert refused.status_code == 409
    body = problem(refused)
    assert (body["code"], body["current_status"], body["actions"]) == ("illegal-transition", "DEAD", ["requeue"])


def test_a_requeue_records_actor_and_reason(site: ApiRig) -> None:
    job_id = site.dead()

    done = site.post(f"/v1/jobs/{job_id}/requeue", {"budget": 3, "reason": "fixed", "delay": 60})

    assert done.status_code == 202
    body = done.json()
    assert (body["status"], body["life"], body["max_attempts"], body["dead"]) == ("PENDING", 2, 4, None)
    *_, last = site.get(f"/v1/jobs/{job_id}/attempts").json()["attempts"]
    assert (last["outcome"], last["worker"], last["error"]["message"]) == ("REQUEUED", "anonymous", "fixed")


def test_a_job_requeued_without_a_body_gets_its_own_attempts_again(site: ApiRig) -> None:
    job_id = site.dead(max_attempts=1)

    assert site.post(f"/v1/jobs/{job_id}/requeue").json()["max_attempts"] == 2


@pytest.mark.parametrize("payload", [{"to": ["é"]}, None, {"$bytes": "aGk="}])
def test_a_requeue_may_replace_the_payload(site: ApiRig, payload: Any) -> None:
    job_id = site.dead(payload={"to": "Eve"})

    done = site.post(f"/v1/jobs/{job_id}/requeue", {"payload": payload})

    assert (done.status_code, done.json()["payload"]) == (202, payload)
    assert site.take().job.data == payload
    last = site.audited()[-1]
    assert (last.action, last.target, last.detail) == ("jobs.requeue", job_id, {"payload": "replaced"})


def test_without_a_payload_a_requeued_job_keeps_its_own(site: ApiRig) -> None:
    job_id = site.dead(payload={"to": "Ada"})

    done = site.post(f"/v1/jobs/{job_id}/requeue", {"budget": 3})

    assert done.json()["payload"] == {"to": "Ada"}
    assert site.audited()[-1].detail == {}


def test_a_new_payload_is_written_by_the_codec_for_that_job(site: ApiRig) -> None:
    codec = AesGcmCodec({"2030": bytes(32)})
    site.backend.client = Client(site.driver, codec=codec)
    job_id = site.dead(payload={"card": "4111"})

    assert site.post(f"/v1/jobs/{job_id}/requeue", {"payload": {"card": "4222"}}).status_code == 202

    job = site.take().job
    assert b"4222" not in job.payload
    assert replace(job, codec=codec).data == {"card": "4222"}


def test_a_requeued_job_keeps_its_idempotency_key(site: ApiRig) -> None:
    first = {"payload": {"to": "Eve"}, "idempotency_key": "k"}
    job_id = site.dead(**first)
    site.post(f"/v1/jobs/{job_id}/requeue", {"payload": {"to": "Ada"}})

    again = site.post("/v1/jobs", {"type": "greet"} | first)

    assert (again.status_code, again.json()["id"], again.json()["payload"]) == (200, job_id, {"to": "Ada"})


def test_a_payload_that_cannot_be_stored_is_refused_and_the_job_stays_dead() -> None:
    with opened(max_body=2_000_000) as site:
        job_id = site.dead()

        refused = site.post(f"/v1/jobs/{job_id}/requeue", {"payload": "x" * 1_100_000})

        assert refused.status_code == 422
        assert [each["pointer"] for each in problem(refused)["errors"]] == ["/payload"]
        assert site.get(f"/v1/jobs/{job_id}").json()["status"] == "DEAD"


def test_a_job_that_is_not_requeued_keeps_its_payload(site: ApiRig) -> None:
    job_id = site.create(payload=1)

    assert site.post(f"/v1/jobs/{job_id}/requeue", {"payload": 2}).status_code == 409
    assert site.post(f"/v1/jobs/{MISSING_ID}/requeue", {"payload": 2}).status_code == 404
    assert site.get(f"/v1/jobs/{job_id}").json()["payload"] == 1


def test_a_succeeded_job_cannot_be_requeued(site: ApiRig) -> None:
    job_id = site.create()
    site.settle(site.take(), Outcome.ack())

    refused = site.post(f"/v1/jobs/{job_id}/requeue")

    assert refused.status_code == 409
    assert problem(refused)["actions"] == []


def test_a_waiting_job_is_rescheduled(site: ApiRig) -> None:
    job_id = site.create()

    done = site.post(f"/v1/jobs/{job_id}/reschedule", {"scheduled_for": "2100-01-01T00:00:00Z", "priority": -5})

    assert done.status_code == 200
    assert (done.json()["scheduled_for"], done.json()["priority"]) == ("2100-01-01T00:00:00Z", -5)


def test_a_running_job_is_not_rescheduled(site: ApiRig) -> None:
    job_id = site.create()
    site.take()

    assert site.post(f"/v1/jobs/{job_id}/reschedule", {"delay": 1}).status_code == 409


@pytest.mark.parametrize("verb", ["requeue", "reschedule"])
def test_a_time_and_a_delay_together_are_refused(site: ApiRig, verb: str) -> None:
    job_id = site.dead()

    refused = site.post(f"/v1/jobs/{job_id}/{verb}", {"scheduled_for": "2100-01-01T00:00:00Z", "delay": 1})

    assert refused.status_code == 422


@pytest.mark.parametrize("verb", ["cancel", "requeue", "reschedule"])
def test_actions_on_a_missing_job_are_404(site: ApiRig, verb: str) -> None:
    assert site.post(f"/v1/jobs/{MISSING_ID}/{verb}", {}).status_code == 404
    assert site.post(f"/v1/jobs/{MISSING_ID}/{verb}", {}, headers={"If-Match": '"x"'}).status_code == 404


@pytest.mark.parametrize("match", ["{}", "*", '"other", {}'])
def test_a_call_whose_etag_still_holds_is_done(site: ApiRig, match: str) -> None:
    made = site.post("/v1/jobs", {"type": "greet"})
    headers = {"If-Match": match.replace("{}", made.headers["etag"])}

    assert site.post(f"{made.headers['location']}/cancel", headers=headers).status_code == 200


@pytest.mark.parametrize(("verb", "body"), [("cancel", None), ("reschedule", {"delay": 1}), ("requeue", {})])
def test_a_call_whose_etag_is_stale_changes_nothing(site: ApiRig, verb: str, body: Any) -> None:
    made = site.post("/v1/jobs", {"type": "greet"})
    path = made.headers["location"]
    site.post(f"{path}/reschedule", {"priority": 1})

    refused = site.post(f"{path}/{verb}", body, headers={"If-Match": made.headers["etag"]})

    assert refused.status_code == 412
    assert problem(refused)["code"] == "stale-etag"
    assert refused.headers["etag"] == site.get(path).headers["etag"]
    assert (site.get(path).json()["status"], site.get(path).json()["priority"]) == ("PENDING", 1)


def test_a_heartbeat_does_not_make_an_etag_stale(site: ApiRig) -> None:
    job_id = site.create()
    claim = site.take()
    etag = site.get(f"/v1/jobs/{job_id}").headers["etag"]

    site.driver.extend([claim.lease], lease=2 * (claim.lease.expires_at - site.driver.inspector.now()))

    assert site.get(f"/v1/jobs/{job_id}").headers["etag"] == etag


def test_every_write_adds_an_audit_entry_with_its_actor(site: ApiRig) -> None:
    dead = site.dead()
    job_id = site.create()
    site.post(f"/v1/jobs/{job_id}/reschedule", {"priority": 1})
    site.post(f"/v1/jobs/{job_id}/cancel")
    site.post(f"/v1/jobs/{dead}/requeue")
    site.post("/v1/queues/mail/pause")
    site.post("/v1/queues/mail/resume")
    site.request("PUT", "/v1/schedules/nightly", json={"cron": "0 2 * * *", "type": "greet"})
    site.post("/v1/schedules/nightly/pause")
    site.post("/v1/schedules/nightly/resume")
    site.post("/v1/schedules/nightly/run")
    site.request("DELETE", "/v1/schedules/nightly")
    site.post("/v1/jobs/batch", {"jobs": [{"type": "greet"}]})

    entries = site.audited()

    assert {each.actor for each in entries} == {"anonymous"}
    assert [each.action for each in entries] == [
        "jobs.enqueue",
        "jobs.enqueue",
        "jobs.reschedule",
        "jobs.cancel",
        "jobs.requeue",
        "queues.pause",
        "queues.resume",
        "schedules.put",
        "schedules.pause",
        "schedules.resume",
        "schedules.run",
        "schedules.delete",
        "jobs.enqueue-many",
    ]
    assert (entries[3].target, entries[5].target) == (job_id, "mail")


def test_rejected_and_empty_changes_add_no_audit_entry(site: ApiRig) -> None:
    dead = site.dead()
    site.post("/v1/queues/mail/pause")
    before = len(site.audited())

    site.post(f"/v1/jobs/{dead}/cancel")
    site.post("/v1/queues/mail/pause")
    site.post("/v1/dead-letters/requeue", {"ids": [dead], "dry_run": True})
    site.request("DELETE", "/v1/schedules/nothing")

    assert len(site.audited()) == before
