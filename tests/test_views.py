"""The JSON forms of the HTTP API and ``--json``."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final
from uuid import UUID

import pytest

from taskharbor import Client, JobRequest, MemoryDriver, Status
from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId, new_token
from taskharbor.core.model import Job, Progress
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.testing.clock import ManualClock
from taskharbor.views import actions, attempt_view, iso_time, job_view, last_failure, queue_view, stored_value

NOW: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
JOB: Final = JobId(UUID("01890a5d-ac96-774b-bcce-b302099a8057"))
LEASE: Final = timedelta(seconds=30)
BOOM: Final = Failure(type="ValueError", message="boom: again", traceback="Traceback …", fingerprint="f00d")


def job(**fields: Any) -> Job:
    defaults: dict[str, Any] = {
        "id": JOB,
        "type": "greet",
        "queue": "default",
        "priority": 0,
        "payload": b'{"name":"Ada"}',
        "status": Status.PENDING,
        "scheduled_for": NOW,
        "timeout": None,
        "created_at": NOW,
        "attempt_count": 0,
        "max_attempts": 3,
    }
    return Job(**defaults | fields)


def view(**fields: Any) -> dict[str, Any]:
    return job_view(job(**fields), now=NOW + timedelta(seconds=10))


def test_a_job_view_is_valid_json_with_the_documented_fields() -> None:
    shown = json.loads(json.dumps(view()))

    assert shown == {
        "id": str(JOB),
        "type": "greet",
        "queue": "default",
        "status": "PENDING",
        "attempt_count": 0,
        "max_attempts": 3,
        "life": 1,
        "priority": 0,
        "timeout": None,
        "created_at": "2030-01-01T12:00:00Z",
        "scheduled_for": "2030-01-01T12:00:00Z",
        "started_at": None,
        "completed_at": None,
        "cancel_requested_at": None,
        "wait_seconds": 10.0,
        "run_seconds": None,
        "progress": None,
        "lease": None,
        "error": None,
        "dead": None,
        "idempotency_key": None,
        "metadata": {},
        "links": {
            "self": f"/v1/jobs/{JOB}",
            "attempts": f"/v1/jobs/{JOB}/attempts",
            "timeline": f"/v1/jobs/{JOB}/timeline",
            "why": f"/v1/jobs/{JOB}/why",
            "events": f"/v1/jobs/{JOB}/events",
        },
        "actions": ["cancel", "reschedule"],
    }


def test_payload_and_result_are_included_only_on_request() -> None:
    done = job(status=Status.SUCCEEDED, result=b'"secret"', completed_at=NOW)

    assert "Ada" not in json.dumps(job_view(done, now=NOW))
    assert "secret" not in json.dumps(job_view(done, now=NOW))
    open_view = job_view(done, now=NOW, with_payload=True)
    assert (open_view["payload"], open_view["result"]) == ({"name": "Ada"}, "secret")


def test_a_lease_view_has_worker_and_expiry_but_no_token() -> None:
    token = new_token()
    held = {
        "status": Status.PROCESSING,
        "worker_id": "w",
        "lease_token": token,
        "lease_expires_at": NOW + LEASE,
        "processing_started_at": NOW + timedelta(seconds=4),
    }

    shown = view(**held)

    assert shown["lease"] == {"worker": "w", "expires_at": "2030-01-01T12:00:30Z"}
    assert (shown["wait_seconds"], shown["run_seconds"]) == (4.0, 6.0)
    assert str(token) not in json.dumps(shown)


def test_a_job_that_is_not_due_has_not_waited() -> None:
    assert view(scheduled_for=NOW + timedelta(hours=1))["wait_seconds"] == 0.0


def test_a_job_that_waits_to_be_tried_again_is_not_running() -> None:
    shown = view(status=Status.FAILED, processing_started_at=NOW - LEASE, last_error="ValueError: boom")

    assert shown["run_seconds"] is None
    assert shown["wait_seconds"] == 10.0


def test_progress_is_shown_as_far_as_it_is_known() -> None:
    shown = view(progress=Progress(done=3, note="page 3"))

    assert shown["progress"] == {"done": 3, "total": None, "note": "page 3"}


def test_an_error_view_has_the_fingerprint_if_the_failure_is_given() -> None:
    failed = job(status=Status.FAILED, last_error=str(BOOM))

    assert job_view(failed, now=NOW, failure=BOOM)["error"] == {
        "type": "ValueError",
        "message": "boom: again",
        "fingerprint": "f00d",
    }
    assert job_view(failed, now=NOW)["error"] == {
        "type": "ValueError",
        "message": "boom: again",
        "fingerprint": None,
    }


def test_a_lost_lease_is_not_shown_as_the_failure_before_it() -> None:
    lost = job(status=Status.FAILED, last_error="lease lost")

    assert job_view(lost, now=NOW, failure=BOOM)["error"] == {
        "type": None,
        "message": "lease lost",
        "fingerprint": None,
    }


@pytest.mark.parametrize(
    ("status", "allowed"),
    [
        (Status.PENDING, ["cancel", "reschedule"]),
        (Status.ENQUEUED, ["cancel", "reschedule"]),
        (Status.FAILED, ["cancel", "reschedule"]),
        (Status.PROCESSING, ["cancel"]),
        (Status.SUCCEEDED, []),
        (Status.DEAD, ["requeue"]),
        (Status.CANCELED, ["requeue"]),
    ],
)
def test_the_actions_are_what_the_state_allows(status: Status, allowed: list[str]) -> None:
    assert actions(job(status=status)) == allowed


def test_a_job_with_a_requested_cancel_has_no_cancel_action() -> None:
    assert actions(job(status=Status.PROCESSING, cancel_requested_at=NOW)) == []


@pytest.mark.parametrize(
    "value",
    [None, 1, "é", {"$mine": [{"$$twice": 1}]}, [[]], {"a": {"b": None}}],
    ids=repr,
)
def test_a_json_payload_is_shown_unchanged(value: object) -> None:
    driver = MemoryDriver()
    stored = Client(driver).enqueue(JobRequest(type="greet", payload=value)).id

    assert stored_value(driver.inspector.get([stored])[stored].payload) == value


@pytest.mark.parametrize("data", [b"\xff", b"NaN", b'"\\ud800"', b"[" * 100_000, b""], ids=lambda data: repr(data[:9]))
def test_bytes_of_another_codec_are_shown_as_tagged_bytes(data: bytes) -> None:
    shown = stored_value(data)

    assert shown.keys() == {"$bytes"}
    json.dumps(shown, ensure_ascii=False).encode()


def test_a_time_is_shown_in_utc() -> None:
    assert iso_time(datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))) == "2030-01-01T10:00:00Z"


def test_attempt_views_show_each_attempt_and_its_error() -> None:
    clock = ManualClock(NOW)
    driver = MemoryDriver(clock=clock)
    stored = Client(driver, clock=clock).enqueue(JobRequest(type="greet")).id
    [claim] = driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=LEASE)
    driver.settle([Settlement(claim.lease, Outcome.fail("hopeless", failure=BOOM))])
    driver.requeue([stored], token=new_token(), budget=1, by="ada", reason="fixed")

    attempts = driver.inspector.attempts([stored])

    assert [(each["outcome"], each["worker"]) for each in map(attempt_view, attempts)] == [
        ("FAILED", "w"),
        ("REQUEUED", "ada"),
    ]
    assert attempt_view(attempts[0])["error"]["traceback"] == "Traceback …"
    assert last_failure(attempts) == BOOM


def test_a_queue_shows_every_status_and_how_long_its_oldest_job_has_waited() -> None:
    clock = ManualClock(NOW)
    driver = MemoryDriver(clock=clock)
    Client(driver, clock=clock).enqueue(JobRequest(type="greet"))
    clock.advance(LEASE)
    driver.maintenance.roll_up(keep=timedelta(days=1))

    [queue] = driver.inspector.queues()
    shown = queue_view(queue, now=clock.now())

    assert shown["counts"].keys() == {status.value for status in Status}
    assert shown["oldest_age_seconds"] == 30.0
    assert queue_view(replace(queue, oldest_due=None), now=NOW)["oldest_age_seconds"] is None
