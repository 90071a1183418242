"""The pages of jobs and bulk operations: lists, reasons, timelines, payloads, actions."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_token
from taskharbor.core.operations import OperationState
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.dashboard.job_filters import read_filter
from taskharbor.dashboard.tracebacks import split_traceback
from taskharbor.operations import OperationRunner
from tests.dashboard.test_sessions import log_in, token_of
from tests.support.browser import note_changes
from tests.support.dashboard_rig import CARD_ERROR, seed
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import httpx

    from taskharbor.core.ids import JobId
    from tests.support.browser import Screen
    from tests.support.dashboard_rig import UiSite


def post(client: httpx.Client, path: str, **fields: str | list[str]) -> httpx.Response:
    """Send the form of the page at *path*, with its token."""
    token = token_of(client.get("/ui/queues"))
    return client.post(f"/ui{path}", data={"token": token, **fields})


def status_of(site: UiSite, job_id: JobId) -> Status:
    return site.driver.inspector.summaries([job_id])[job_id].status


def test_the_list_shows_why_each_job_is_in_its_state(site: UiSite) -> None:
    jobs = seed(site)
    with site.http() as client:
        text = client.get("/ui/jobs").text

    found = re.finditer(r'<tr data-key="([^"]+)">(.*?)</tr>', text, re.DOTALL)
    rows = {match[1]: " ".join(re.sub(r"<[^>]+>", " ", match[2]).split()) for match in found}
    reasons = {name: rows[str(job_id)] for name, job_id in jobs.items()}
    assert "runs on web-1" in reasons["running"]
    assert re.search(r"due in \d+ s · SMTPError: 421 try later", reasons["retry"])
    assert "its queue is paused" in reasons["paused"]
    assert "no live worker handles it" in reasons["waiting"]
    assert "hopeless" in reasons["dead"]
    assert "Succeeded" in reasons["done"]
    assert "Canceled" in reasons["canceled"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("status=DEAD&queue=payments", 5),
        ("status=dead&status=PENDING&queue=payments", 9),
        ("queue=images", 3),
        ("type=charge.card&status=PENDING", 4),
        ("fingerprint=c0ffee0000000001", 5),
        ("since=1h&queue=payments", 9),
        ("until=1h&queue=payments", 0),
        ("tag=no=thing", 0),
        ("queue=payments&type=&since=", 9),
    ],
)
def test_filters_select_jobs(seeded: UiSite, query: str, expected: int) -> None:
    with seeded.http() as client:
        text = client.get(f"/ui/jobs?{query}").text

    assert text.count("<tr data-key=") == expected


def test_a_filter_that_cannot_be_read_is_named_and_kept(seeded: UiSite) -> None:
    with seeded.http() as client:
        answer = client.get("/ui/jobs?since=yesterday&tag=x&status=LOST")

    assert answer.status_code == 200
    for problem in ("since: write an age such as 15m", "tag: write it as key=value", "unknown state &#39;LOST&#39;"):
        assert problem in answer.text
    assert 'value="yesterday"' in answer.text


def test_a_filter_keeps_its_meaning_in_a_bulk_operation(seeded: UiSite) -> None:
    now = seeded.driver.inspector.now()
    given = {"since": ["1h"], "status": ["DEAD"], "queue": ["mail"]}
    first = read_filter(lambda name: given.get(name, []), now)
    fixed: dict[str, list[str]] = {}
    for name, value in first.fixed():
        fixed.setdefault(name, []).append(value)

    later = read_filter(lambda name: fixed.get(name, []), now + timedelta(hours=2))

    assert later.wanted == first.wanted


def test_a_job_shows_its_timeline_error_and_facts(seeded: UiSite, screen: Screen) -> None:
    screen.go(f"/jobs/{seeded.jobs['dead']}")

    text = screen.text()
    assert "became a dead letter" in text
    assert "stripe.CardError: card_declined" in text
    assert 'File "charge.py", line 88, in charge' in text
    assert "payments" in text


def test_frames_of_libraries_are_folded() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/app/shop.py", line 3, in pay\n    charge()\n'
        '  File "/usr/lib/python3.11/json/__init__.py", line 1, in loads\n    x\n'
        '  File "/venv/lib/site-packages/stripe/api.py", line 9, in call\n    y\n'
        "stripe.CardError: declined"
    )

    parts = split_traceback(text)

    assert [(part.is_library, part.frames) for part in parts] == [(False, 1), (True, 2), (False, 0)]
    assert "\n".join(part.text for part in parts) == text


def test_a_payload_needs_its_scope_is_exact_masked_and_audited(locked: UiSite) -> None:
    [job_id] = locked.enqueue("pay")
    exact = {"n": 2**63, "html": "</script><b>", "card": "4111-1111", "nested": [{"password": "hunter2"}]}
    locked.driver.cancel([job_id])
    payload = locked.harbor.client.encode(exact, job_id, job_type="pay")
    locked.driver.requeue([job_id], token=new_token(), by="test", reason="", payload=payload)
    with locked.http() as client, locked.http() as other:
        log_in(client, locked.key("jobs:read", "payload:read"))
        log_in(other, locked.key("jobs:read", name="reader"))

        assert other.get(f"/ui/jobs/{job_id}/payload").status_code == 403
        assert "hunter2" not in other.get(f"/ui/jobs/{job_id}").text
        masked = client.get(f"/ui/jobs/{job_id}/payload").text
        shown = client.get(f"/ui/jobs/{job_id}/payload?show=1").text

    assert "9223372036854775808" in masked
    assert "&lt;/script&gt;&lt;b&gt;" in masked
    assert "hunter2" not in masked
    assert "4111-1111" not in masked
    assert "hunter2" in shown
    entries = locked.driver.inspector.audit(limit=10, target=str(job_id))
    assert [entry.action for entry in entries].count("payload.read") == 2


def test_a_waiting_job_is_canceled_and_the_cancel_undone_in_the_browser(site: UiSite, screen: Screen) -> None:
    [job_id] = site.enqueue("email.send")
    screen.go(f"/jobs/{job_id}")
    screen.page.click("text=Cancel…")
    screen.page.click("dialog button.danger")
    screen.page.wait_for_selector("#note .note")
    assert status_of(site, job_id) is Status.CANCELED

    screen.page.click("#note button")

    screen.page.wait_for_selector("#note .note:has-text('requeued')")
    assert status_of(site, job_id) is Status.PENDING


def test_a_change_in_between_rejects_a_form_and_shows_the_job(site: UiSite) -> None:
    [job_id] = site.enqueue("email.send")
    with site.http() as client:
        found = re.search(r'name="etag" value="([^"]+)"', client.get(f"/ui/jobs/{job_id}/cancel").text)
        assert found is not None
        site.claim()

        answer = post(client, f"/jobs/{job_id}/cancel", etag=found[1].replace("&#34;", '"'))

    assert answer.status_code == 412
    assert status_of(site, job_id) is Status.PROCESSING


def test_a_dead_job_is_requeued_with_another_input(site: UiSite) -> None:
    [job_id] = site.enqueue("email.send", max_attempts=1)
    site.settle(site.claim(), Outcome.fail("hopeless", failure=CARD_ERROR))
    with site.http() as client:
        wrong = post(client, f"/jobs/{job_id}/requeue", payload="{no")
        done = post(client, f"/jobs/{job_id}/requeue", payload='{"n": 7}', budget="3", delay="2h", reason="fixed")

    job = site.driver.inspector.get([job_id])[job_id]
    assert (wrong.status_code, "Input: not JSON" in wrong.text) == (422, True)
    assert done.status_code == 303
    assert (json.loads(job.payload), job.status, job.max_attempts) == ({"n": 7}, Status.PENDING, 4)
    assert job.scheduled_for > site.driver.inspector.now() + timedelta(hours=1)


def test_a_rescheduled_job_gets_its_old_time_back(site: UiSite) -> None:
    [job_id] = site.enqueue("email.send", delay=timedelta(hours=5))
    before = site.driver.inspector.summaries([job_id])[job_id].scheduled_for
    with site.http() as client:
        post(client, f"/jobs/{job_id}/reschedule", delay="0s")
        moved = site.driver.inspector.summaries([job_id])[job_id].scheduled_for
        undo = re.search(r'action="/ui(/jobs/[^"]+/reschedule\?at=[^"]+)"', client.get(f"/ui/jobs/{job_id}").text)
        assert undo is not None
        post(client, undo[1])

    assert moved < before
    assert site.driver.inspector.summaries([job_id])[job_id].scheduled_for == before


def test_a_job_that_is_not_due_runs_now_and_gets_its_time_back(site: UiSite) -> None:
    [job_id] = site.enqueue("email.send", delay=timedelta(hours=5))
    before = site.driver.inspector.summaries([job_id])[job_id].scheduled_for
    with site.http(follow_redirects=True) as client:
        assert "Run now" in client.get(f"/ui/jobs/{job_id}").text
        page = post(client, f"/jobs/{job_id}/reschedule?now=1").text
        moved = site.driver.inspector.summaries([job_id])[job_id].scheduled_for
        undo = re.search(r'action="/ui(/jobs/[^"]+/reschedule\?at=[^"]+)"', page)
        assert undo is not None
        post(client, undo[1])

    assert "Run now" not in page
    assert moved <= site.driver.inspector.now()
    assert site.driver.inspector.summaries([job_id])[job_id].scheduled_for == before


def test_the_preview_of_a_replay_says_whether_a_live_worker_handles_it(site: UiSite) -> None:
    for number in range(2):
        site.enqueue(f"type{number}", queue="payments", max_attempts=1)
    site.settle(site.claim("payments", 2), Outcome.fail("hopeless", failure=CARD_ERROR))
    site.worker(queues=("payments",), types=("type0",))
    site.worker("web-2", queues=("mail",), types=("type1",))
    with site.http() as client:
        text = client.get("/ui/jobs/bulk?kind=requeue&all=1&status=DEAD").text

    assert "A live worker handles type0: yes." in text
    assert "A live worker handles type1: no; its jobs would wait." in text


def test_a_bulk_operation_is_previewed_undone_and_performed(site: UiSite) -> None:
    jobs = site.enqueue("email.send", 4, max_attempts=1)
    site.settle(site.claim(count=4), Outcome.fail("hopeless", failure=CARD_ERROR))
    with site.http(follow_redirects=True) as client:
        preview = client.get("/ui/jobs/bulk?kind=requeue&all=1&status=DEAD").text
        assert "Requeue 4 jobs?" in preview
        undone = post(client, "/jobs/bulk", kind="requeue", all="1", status="DEAD", rate="")
        operation = re.search(r"/operations/([0-9a-f-]{36})/stop", undone.text)
        assert operation is not None
        OperationRunner(site.driver, lambda: 0.0).tick()  # within five seconds, a runner does nothing
        assert {status_of(site, each) for each in jobs} == {Status.DEAD}
        assert "Undone: nothing was changed." in post(client, f"/operations/{operation[1]}/stop").text
        assert {status_of(site, each) for each in jobs} == {Status.DEAD}

        post(client, "/jobs/bulk", kind="requeue", id=[str(jobs[0]), str(jobs[1])], rate="", reason="fixed")
        [newest, _] = site.driver.operations.recent(limit=2)
        runner = OperationRunner(site.driver, lambda: 0.0)

        def is_done() -> bool:
            runner.tick()
            return site.driver.operations.get([newest.id])[newest.id].state is OperationState.DONE

        wait_until(is_done)
        text = client.get(f"/ui/operations/{newest.id}").text

    assert [status_of(site, each) for each in jobs] == [Status.PENDING] * 2 + [Status.DEAD] * 2
    assert "Done" in text
    assert "fixed" in text


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"kind": "requeue"}, "no job is ticked"),
        ({"all": "1"}, "choose what to do"),
        ({"kind": "requeue", "all": "1", "rate": "-1"}, "jobs per second: &#39;-1&#39; is not a positive number"),
        ({"kind": "purge", "all": "1", "queue": "payments", "typed": "3"}, "type the number of jobs, 5"),
        ({"kind": "requeue", "id": "x"}, "an id of a job is not valid"),
        ({"kind": "reschedule", "all": "1", "delay": "soon"}, "due in: write a duration with its unit"),
        ({"kind": "reschedule", "all": "1", "priority": "9" * 30}, "priority: input should be"),
        ({"kind": "requeue", "all": "1", "budget": "9" * 30}, "budget: input should be"),
        ({"kind": "requeue", "all": "1", "rate": "1e-300"}, "rate: input should be"),
        ({"kind": "requeue", "all": "1", "reason": "x" * 5_000}, "reason: string should have"),
        ({"kind": "reschedule", "all": "1", "scheduled_for": "0001-01-01T00:00+14:00"}, "scheduled_for: must be"),
    ],
)
def test_a_bulk_form_that_cannot_be_read_changes_nothing(seeded: UiSite, fields: dict[str, str], problem: str) -> None:
    with seeded.http() as client:
        answer = post(client, "/jobs/bulk", **fields)

    assert (answer.status_code, problem in answer.text.lower()) == (422, True), answer.text
    assert seeded.driver.operations.recent(limit=1) == []


def test_ticked_rows_stay_and_unticked_ones_follow_changes(site: UiSite, screen: Screen) -> None:
    [job_id] = site.enqueue("email.send")
    screen.go("/jobs")
    row = screen.page.locator(f'tr[data-key="{job_id}"]')
    row.locator("input").check()
    screen.page.click("h1")  # a row with focus stays
    screen.page.wait_for_selector("#live:has-text('held')")
    has_seen = note_changes(screen)
    site.driver.cancel([job_id])
    wait_until(has_seen)
    assert "Waiting" in row.inner_text()

    row.locator("input").uncheck()
    screen.page.click("h1")
    row.locator(".state:has-text('Canceled')").wait_for()

    site.enqueue("email.send", 2)
    screen.page.wait_for_selector("[data-fresh]:has-text('2 new')")
    assert screen.page.locator("tbody tr").count() == 1


def test_a_job_that_changes_under_the_focus_shows_it_afterwards(site: UiSite, screen: Screen) -> None:
    [job_id] = site.enqueue("email.send")
    screen.go("/jobs")
    screen.page.wait_for_selector("#live:has-text('live')")
    row = screen.page.locator(f'tr[data-key="{job_id}"]')
    row.locator("input").focus()

    with screen.page.expect_response(lambda answer: "x-part" in answer.request.headers and answer.status == 200):
        site.driver.cancel([job_id])
    screen.page.wait_for_function("!document.querySelector('[aria-busy]')")
    assert "Waiting" in row.inner_text()

    screen.page.click("h1")
    row.locator(".state:has-text('Canceled')").wait_for()


def test_a_sparse_filter_says_how_far_it_looked(site: UiSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.dashboard.pages.jobs.MAX_LOOKS", 1)
    site.enqueue("email.send", 1_200)
    with site.http() as client:
        text = client.get("/ui/jobs?tag=no=thing").text

    assert "No job that was created since" in text
    assert "Look further" in text


def test_an_error_with_a_script_is_shown_as_text(site: UiSite, screen: Screen) -> None:
    [job_id] = site.enqueue("email.send", max_attempts=1)
    nasty = Failure(type="Boom", message="<script>alert(1)</script>", traceback="<img src=x>", fingerprint="f")
    site.settle(site.claim(), Outcome.fail("hopeless", failure=nasty))

    screen.go(f"/jobs/{job_id}")

    assert "<script>alert(1)</script>" in screen.text()
