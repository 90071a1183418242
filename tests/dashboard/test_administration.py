"""Dead letters, schedules, workers, audit, keys and health."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from taskharbor.api_keys import SCOPES
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.dashboard.texts import SCOPE_TEXTS
from taskharbor.schedules import Scheduler, ScheduleSpec
from tests.dashboard.test_jobs import post, status_of
from tests.dashboard.test_sessions import log_in
from tests.support.dashboard_rig import CARD_ERROR

if TYPE_CHECKING:
    from tests.support.browser import Screen
    from tests.support.dashboard_rig import UiSite


def put_schedule(site: UiSite, name: str = "digest") -> None:
    spec = ScheduleSpec(name=name, cron="0 2 * * *", timezone="Europe/Paris", type="email.send", queue="mail")
    Scheduler(site.driver, codec=site.harbor.codec).put([spec])


def test_a_group_shows_its_error_version_and_jobs_and_leads_to_its_replay(site: UiSite, screen: Screen) -> None:
    site.worker(version="4f2c", queues=("payments",), types=("charge.card",))
    dead = site.enqueue("charge.card", 3, queue="payments", max_attempts=1)
    site.settle(site.claim("payments", 3), Outcome.fail("hopeless", failure=CARD_ERROR))
    site.roll_up()
    screen.go("/dead")
    assert "stripe.CardError" in screen.text()

    screen.page.click("tbody a >> nth=0")

    screen.page.wait_for_selector("h1:has-text('stripe.CardError')")
    text = screen.text()
    assert "3 dead letters" in text
    assert "A live worker handles this type\nyes" in text
    assert all(str(each)[-12:] in text for each in dead)
    screen.page.click("text=Replay…")
    screen.page.wait_for_selector("dialog h1:has-text('Requeue 3 jobs?')")


def test_an_unknown_group_worker_schedule_or_key_is_not_found(site: UiSite) -> None:
    with site.http() as client:
        for path in ("/dead/none", "/workers/none", "/schedules/none", "/keys/none/revoke", "/operations/x"):
            assert client.get(f"/ui{path}").status_code == 404, path


def test_a_worker_shows_what_it_runs_and_what_was_lost_with_it(site: UiSite) -> None:
    [lost] = site.enqueue("email.send")
    site.worker("web-1")
    site.driver.reserve(
        "default",
        token=new_token(),
        worker="web-1",
        lease=timedelta(microseconds=1),
        limit=1,
        overdue_after=timedelta(1),
    )
    site.driver.maintenance.expire(limit=10)
    [again] = site.claim(worker="web-2")
    site.settle([again], Outcome.ack())
    [held] = site.enqueue("email.send")
    site.claim(worker="web-1")
    with site.http() as client:
        text = client.get("/ui/workers/web-1").text

    running, _, gone = text.partition("Lost with it")
    assert str(held) in running
    assert str(lost) in gone
    assert re.search(r"on web-2, \d", gone)
    assert "Succeeded" in gone


def test_a_mixed_deploy_is_pointed_out(site: UiSite) -> None:
    site.worker("web-1", version="4f2c")
    site.worker("web-2", version="5a1b")
    with site.http() as client:
        text = client.get("/ui/workers").text

    assert "Live workers run 2 versions: 4f2c, 5a1b." in text


def test_a_schedule_is_run_paused_resumed_and_deleted(site: UiSite) -> None:
    put_schedule(site)
    with site.http(follow_redirects=True) as client:
        page = client.get("/ui/schedules/digest").text
        assert "At 02:00" in page
        assert "CE" in page  # the zone of the local times
        ran = post(client, "/schedules/digest/run")
        assert "Schedule digest has created this job." in ran.text
        post(client, "/schedules/digest/pause")
        assert "paused" in client.get("/ui/schedules").text
        post(client, "/schedules/digest/resume")
        refused = post(client, "/schedules/digest/delete", typed="digests")
        assert refused.status_code == 422
        assert "digest" in site.driver.inspector.schedules()
        post(client, "/schedules/digest/delete", typed="digest")

    assert site.driver.inspector.schedules() == {}
    actions = [entry.action for entry in site.driver.inspector.audit(limit=10, target="digest")]
    assert sorted(actions) == ["schedules.delete", "schedules.pause", "schedules.resume", "schedules.run"]


def test_many_schedules_are_shown_in_pages(site: UiSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.dashboard.pages.schedules.PAGE", 2)
    for name in ("a", "b/c", "d"):
        put_schedule(site, name)
    with site.http() as client:
        first, second = client.get("/ui/schedules").text, client.get("/ui/schedules?after=b/c").text

    assert re.findall(r'<tr data-key="([^"]+)"', first) == ["a", "b/c"]
    assert "/ui/schedules?after=b/c" in first
    assert re.findall(r'<tr data-key="([^"]+)"', second) == ["d"]
    assert re.search(r'href="[^"]*after=', second) is None


def test_the_audit_log_is_filtered_by_each_of_its_fields(site: UiSite) -> None:
    site.enqueue("email.send", 2)
    with site.http() as client:
        post(client, "/queues/default/pause", reason="incident")
        post(client, "/queues/default/resume")
        both, one = client.get("/ui/audit").text, client.get("/ui/audit?action=queues.pause").text

    assert both.count("<tr data-key=") == 2
    assert one.count("<tr data-key=") == 1


def test_every_scope_can_be_chosen_for_a_new_key() -> None:
    assert sorted(SCOPE_TEXTS) == sorted(SCOPES)


def test_a_key_is_created_shown_once_and_revoked(locked: UiSite) -> None:
    with locked.http(follow_redirects=True) as client:
        log_in(client, locked.key("admin"))
        assert post(client, "/keys/new", name="ci", scope=[]).status_code == 422
        made = post(client, "/keys/new", name="ci", scope=["jobs:read", "jobs:write"], expires_in="24h").text
        found = re.search(r"thk_([0-9a-f]{12})_[\w-]{43}", made)
        assert found is not None
        listed = client.get("/ui/keys").text
        assert found[0] not in listed
        assert "jobs:read, jobs:write" in listed
        assert post(client, f"/keys/{found[1]}/revoke", typed="ci").status_code == 422
        post(client, f"/keys/{found[1]}/revoke", typed=found[1])

    key = locked.driver.inspector.keys([found[1]])[found[1]]
    assert key.revoked_at is not None
    assert key.expires_at is not None


@pytest.mark.parametrize("path", ["/audit", "/keys", "/keys/new"])
def test_administration_needs_the_scope_admin(locked: UiSite, path: str) -> None:
    with locked.http() as client:
        log_in(client, locked.key(*(each for each in SCOPES if each != "admin")))
        answer = client.get(f"/ui{path}")

    assert answer.status_code == 403
    assert "<code>admin</code>" in answer.text


def test_health_shows_what_doctor_finds(site: UiSite) -> None:
    site.enqueue("email.send", max_attempts=1)
    site.settle(site.claim(), Outcome.fail("hopeless", failure=CARD_ERROR))
    site.roll_up()
    with site.http() as client:
        text = client.get("/ui/health").text

    assert "The journal mode is WAL" in text
    assert re.search(r"<td class=\"k\" data-l=\"Check\">Dead letters</td>.*?Risk", text)
    assert "There are risks." in text


def test_a_replayed_group_is_requeued(site: UiSite) -> None:
    [job_id] = site.enqueue("charge.card", queue="payments", max_attempts=1)
    site.settle(site.claim("payments"), Outcome.fail("hopeless", failure=CARD_ERROR))
    with site.http() as client:
        query = f"all=1&status=DEAD&fingerprint={CARD_ERROR.fingerprint}"
        assert "Requeue 1 job?" in client.get(f"/ui/jobs/bulk?kind=requeue&{query}").text

    assert status_of(site, job_id) is Status.DEAD


def test_the_text_of_a_new_key_is_not_kept(site: UiSite) -> None:
    with site.http() as client:
        created = post(client, "/keys/new", name="ci", scope="jobs:read")

    [text] = re.findall(r"thk_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", created.text)
    kept = vars(site.app.state.taskharbor_dashboard.last_pages)
    assert text not in repr(kept)


def test_a_schedule_whose_name_has_slashes_is_shown_and_deleted(site: UiSite) -> None:
    put_schedule(site, "reports/daily:eu")
    with site.http(follow_redirects=True) as client:
        listed = client.get("/ui/schedules").text
        [path] = re.findall(r'href="/ui(/schedules/[^"]+)"', listed)
        assert "<h1>reports/daily:eu</h1>" in client.get(f"/ui{path}").text
        assert "Delete schedule reports/daily:eu?" in client.get(f"/ui{path}/delete").text
        post(client, f"{path}/delete", typed="reports/daily:eu")

    assert site.driver.inspector.schedules() == {}


def test_the_preview_of_a_schedules_change_needs_its_scope(locked: UiSite) -> None:
    put_schedule(locked)
    with locked.http() as client:
        log_in(client, locked.key("jobs:read"))
        shown, refused = client.get("/ui/schedules/digest"), client.get("/ui/schedules/digest/pause")

    assert (shown.status_code, refused.status_code) == (200, 403)
    assert "<code>schedules:write</code>" in refused.text


@pytest.mark.parametrize("page", ["payload?show=1", "requeue?edit=1"])
def test_a_page_with_a_payload_is_not_kept(site: UiSite, page: str) -> None:
    [job_id] = site.enqueue("email.send")
    site.driver.cancel([job_id])
    with site.http() as client:
        shown = client.get(f"/ui/jobs/{job_id}/{page}")
        client.get(f"/ui/jobs/{job_id}")

    kept = repr(vars(site.app.state.taskharbor_dashboard.last_pages))
    assert "&#34;n&#34;: 0" in shown.text
    assert str(job_id) in kept
    assert "&#34;n&#34;: 0" not in kept
