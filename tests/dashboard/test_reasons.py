"""Why a job waits, in the list and on its page; secrets; what the pages of a job offer."""

from __future__ import annotations

import json
import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId, first_id_at, new_token
from taskharbor.core.messages import DeliveryNote, DeliveryRole
from taskharbor.core.outcome import Outcome
from taskharbor.core.request import JobRequest
from taskharbor.core.results import Sent
from taskharbor.core.states import Status
from taskharbor.diagnosis import Cause
from tests.dashboard.test_jobs import post, status_of
from tests.dashboard.test_sessions import log_in
from tests.support.dashboard_rig import CARD_ERROR, LEASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.dashboard_rig import UiSite

SOON: Final = timedelta(microseconds=1)


def shown_reasons(site: UiSite, job_id: JobId) -> tuple[str, str]:
    """Return the words about a job in the list and on its page, without markup."""
    with site.http() as client:
        [row] = re.findall(rf'<tr data-key="{job_id}">(.*?)</tr>', client.get("/ui/jobs").text, re.DOTALL)
        [why] = re.findall(r"<p><b>Why:</b>(.*?)</p>", client.get(f"/ui/jobs/{job_id}").text, re.DOTALL)
    plain = [" ".join(re.sub(r"<[^>]+>", " ", text).split()) for text in (row, why)]
    return plain[0], plain[1]


def note(site: UiSite, role: DeliveryRole, problem: str = "") -> None:
    site.driver.maintenance.record_delivery([DeliveryNote(queue="default", role=role, problem=problem)])


def waiting(site: UiSite) -> JobId:
    site.worker()
    [job_id] = site.enqueue()
    return job_id


def ended(site: UiSite) -> JobId:
    [job_id] = site.enqueue(max_attempts=1)
    site.settle(site.claim(), Outcome.fail("hopeless", failure=CARD_ERROR))
    return job_id


def leased(site: UiSite) -> JobId:
    job_id = waiting(site)
    site.claim()
    return job_id


def lease_over(site: UiSite) -> JobId:
    job_id = waiting(site)
    site.driver.reserve("default", token=new_token(), worker="web-1", lease=SOON, limit=1, overdue_after=LEASE)
    return job_id


def not_due(site: UiSite) -> JobId:
    [job_id] = site.enqueue(delay=timedelta(hours=5))
    return job_id


def paused(site: UiSite) -> JobId:
    job_id = waiting(site)
    site.driver.control.pause(["default"], by="ana")
    return job_id


def unhandled(site: UiSite) -> JobId:
    site.worker()
    [job_id] = site.enqueue("img.resize")
    return job_id


def no_enqueuer(site: UiSite) -> JobId:
    note(site, DeliveryRole.RECEIVER)
    return waiting(site)


def send_failed(site: UiSite) -> JobId:
    note(site, DeliveryRole.RECEIVER)
    note(site, DeliveryRole.SENDER, "no access")
    return waiting(site)


def sent(site: UiSite) -> JobId:
    job_id = waiting(site)
    [due] = site.driver.dispatch("default", limit=1, lock=LEASE, unclaimed=1)
    site.driver.record_dispatch([Sent(due, LEASE)])
    return job_id


def receive_failed(site: UiSite) -> JobId:
    note(site, DeliveryRole.RECEIVER, "no access")
    return sent(site)


def behind(site: UiSite) -> JobId:
    site.enqueue("email.send", 2, priority=-1)
    return waiting(site)


CAUSES: Final[dict[Cause, tuple[Callable[[UiSite], JobId], str]]] = {
    Cause.FINAL: (ended, "hopeless"),
    Cause.LEASED: (leased, "runs on web-1"),
    Cause.LEASE_OVER: (lease_over, "the lease of web-1 expired"),
    Cause.NOT_DUE: (not_due, "due in 5 h"),
    Cause.PAUSED: (paused, "its queue is paused"),
    Cause.UNHANDLED: (unhandled, "no live worker handles it"),
    Cause.NO_ENQUEUER: (no_enqueuer, "no enqueuer sends its message"),
    Cause.SEND_FAILED: (send_failed, "its message cannot be sent"),
    Cause.RECEIVE_FAILED: (receive_failed, "workers cannot receive its message"),
    Cause.MESSAGE: (sent, "its message is on its way"),
    Cause.AHEAD: (behind, "≈ 2 jobs come first"),
    Cause.NEXT: (waiting, "next: a free slot runs it"),
}


@pytest.mark.parametrize("cause", Cause)
def test_each_cause_is_shown_in_the_list_and_on_the_job(cause: Cause, site: UiSite) -> None:
    arrange, words = CAUSES[cause]
    job_id = arrange(site)

    row, page = shown_reasons(site, job_id)

    assert words in row
    assert words in page


def test_secrets_of_a_payload_are_on_no_other_page(locked: UiSite) -> None:
    secrets = {"password": "canary-one", "note": "canary-two"}
    request = JobRequest(type="pay", payload=secrets, queue="payments", max_attempts=1)
    [made] = locked.harbor.client.enqueue_many([request])
    locked.settle(locked.claim("payments"), Outcome.fail("hopeless", failure=CARD_ERROR))
    locked.roll_up()
    job, group = f"/jobs/{made.id}", f"/dead/{CARD_ERROR.fingerprint}"
    paths = ["/", "/jobs", job, f"{job}/requeue", f"{job}/duplicate", "/jobs/bulk?kind=requeue&all=1&queue=payments"]
    paths += ["/dead", group, "/queues/payments", "/audit", "/find?q=pay", "/health", "/operations"]
    with locked.http() as client:
        log_in(client, locked.key("admin"))
        pages = {path: client.get(f"/ui{path}") for path in paths}
        masked = client.get(f"/ui{job}/payload").text
        duplicate = post(client, f"{job}/duplicate").headers["location"]
        pages[duplicate] = client.get(duplicate)
        pages["audit afterwards"] = client.get("/ui/audit")

    assert {path: page.status_code for path, page in pages.items()} == dict.fromkeys(pages, 200)
    assert [path for path, page in pages.items() if "canary" in page.text] == []
    assert ("canary-one" in masked, "canary-two" in masked) == (False, True)


def test_a_duplicate_has_the_payload_and_options_but_not_the_key(site: UiSite) -> None:
    options: dict[str, Any] = {"queue": "mail", "priority": -5, "max_attempts": 7, "timeout": 90}
    request = JobRequest(
        type="email.send",
        payload={"n": 2**63},
        idempotency_key="once",
        metadata={"tenant": "a", "schedule": "digest"},
        **options,
    )
    [first] = site.harbor.client.enqueue_many([request])
    with site.http() as client:
        assert "The idempotency key is not copied." in client.get(f"/ui/jobs/{first.id}/duplicate").text
        answer = post(client, f"/jobs/{first.id}/duplicate")

    [entry] = site.driver.inspector.audit(limit=1)
    assert answer.headers["location"] == f"/ui/jobs/{entry.target}"
    assert entry.detail["copy_of"] == str(first.id)
    made = JobId(UUID(entry.target))
    copy = site.driver.inspector.get([made])[made]
    assert json.loads(copy.payload) == {"n": 2**63}
    assert (copy.queue, copy.priority, copy.max_attempts, copy.timeout) == ("mail", -5, 7, timedelta(seconds=90))
    assert (copy.idempotency_key, dict(copy.metadata), copy.status) == (None, {"tenant": "a"}, Status.PENDING)


def test_a_duplicate_needs_the_scope_to_create_jobs(locked: UiSite) -> None:
    [job_id] = locked.enqueue()
    with locked.http() as client:
        log_in(client, locked.key("jobs:read", "jobs:control"))
        asked, done = client.get(f"/ui/jobs/{job_id}/duplicate"), post(client, f"/jobs/{job_id}/duplicate")
        page = client.get(f"/ui/jobs/{job_id}").text

    assert (asked.status_code, done.status_code, "Duplicate…" in page) == (403, 403, False)


def test_the_present_input_is_edited_on_request_and_the_look_is_audited(locked: UiSite) -> None:
    job_id = ended(locked)
    with locked.http() as client, locked.http() as other:
        log_in(client, locked.key("jobs:read", "jobs:control", "jobs:write", "payload:read"))
        log_in(other, locked.key("jobs:read", "jobs:control", "jobs:write", name="writer"))
        empty = client.get(f"/ui/jobs/{job_id}/requeue").text
        before = len(locked.driver.inspector.audit(limit=10, target=str(job_id)))
        filled = client.get(f"/ui/jobs/{job_id}/requeue?edit=1").text
        refused = other.get(f"/ui/jobs/{job_id}/requeue?edit=1")

    assert "&#34;n&#34;: 0" in filled
    assert "&#34;n&#34;" not in empty
    assert (before, refused.status_code) == (0, 403)
    [entry] = locked.driver.inspector.audit(limit=10, target=str(job_id))
    assert entry.action == "payload.read"


def test_an_unknown_job_says_how_long_jobs_are_kept(site: UiSite) -> None:
    now = site.driver.inspector.now()
    with site.http() as client:
        answer = client.get(f"/ui/jobs/{first_id_at(now - timedelta(days=12))}")

    assert answer.status_code == 404
    assert f"The id was made at {now - timedelta(days=12):%Y-%m-%d}" in answer.text
    assert "kept for 7 d, dead letters until they are purged" in answer.text


def test_a_form_that_is_out_of_date_says_what_changed(site: UiSite) -> None:
    job_id = waiting(site)
    with site.http() as client:
        found = re.search(r'name="etag" value="([^"]+)"', client.get(f"/ui/jobs/{job_id}/cancel").text)
        assert found is not None
        site.claim(worker="web-7")
        answer = post(client, f"/jobs/{job_id}/cancel", etag=found[1].replace("&#34;", '"'))

    assert answer.status_code == 412
    assert "it is now: Running, attempt 1 of 20, on web-7" in answer.text
    assert status_of(site, job_id) is Status.PROCESSING


def test_a_filter_that_matches_nothing_is_answered_soon(site: UiSite) -> None:
    site.enqueue("email.send", 30_000)
    with site.http() as client:
        text = client.get("/ui/jobs?tag=no=thing").text
        took = []
        for _ in range(5):
            began = time.monotonic()
            client.get("/ui/jobs?tag=no=thing")
            took.append(time.monotonic() - began)

    assert "Look further" in text
    assert min(took) <= 0.3


def test_an_error_without_a_message_has_a_title(site: UiSite) -> None:
    [job_id] = site.enqueue(max_attempts=1)
    failure = Failure(type="Boom", message="", traceback="", fingerprint="f")
    site.settle(site.claim(), Outcome.fail("", failure=failure))
    with site.http() as client:
        assert "</b> Boom</summary>" in client.get(f"/ui/jobs/{job_id}").text
