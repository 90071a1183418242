"""What the pages show of workers that die or stop, and of jobs that are replayed."""

from __future__ import annotations

import re
import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from taskharbor import Harbor
from taskharbor.core.operations import OperationState
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import JobFilter
from taskharbor.core.states import Status
from taskharbor.operations import OperationRunner
from tests.dashboard.test_jobs import post, status_of
from tests.support.dashboard_rig import CARD_ERROR, serve_site
from tests.support.postgres import emptied
from tests.support.waiting import wait_until
from tests.support.worker_fleet import Fleet
from tests.worker.test_refusals import start_known, wait_for_second_attempts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

    from taskharbor.core.ids import JobId
    from taskharbor.core.operations import Operation
    from tests.support.dashboard_rig import UiSite

ENDLESS_SECONDS = 300.0  # of handlers whose process is killed


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet.at(emptied(), tmp_path) as fleet:
        yield fleet


@pytest.fixture
def shown(fleet: Fleet) -> Iterator[UiSite]:
    """A dashboard on the store of the fleet."""
    with serve_site(harbor=Harbor(fleet.driver)) as site:
        yield site


def timeline_of(client: httpx.Client, job_id: JobId) -> list[str]:
    """Return the entries of a job's timeline, without markup."""
    [items] = re.findall(r'<ol class="timeline">(.*?)</ol>', client.get(f"/ui/jobs/{job_id}").text, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", "", each).split()) for each in items.split("</li>") if each.strip()]


def test_a_killed_workers_jobs_are_on_its_page_with_loss_and_recovery(fleet: Fleet, shown: UiSite) -> None:
    killed, victim = start_known(fleet)
    jobs = fleet.enqueue(3, seconds=ENDLESS_SECONDS)
    fleet.wait_for_starts(jobs)
    with shown.http() as client:
        before = client.get(f"/ui/workers/{victim}").text.partition("Lost with it")
        _, heir = start_known(fleet)

        killed.kill()
        wait_for_second_attempts(fleet, jobs, heir)

        after = client.get(f"/ui/workers/{victim}").text.partition("Lost with it")
        stories = {job_id: timeline_of(client, job_id) for job_id in jobs}
    assert all(str(each) in before[0] and str(each) not in before[2] for each in jobs)
    assert all(str(each) in after[2] and str(each) not in after[0] for each in jobs)
    assert len(re.findall(rf"on {re.escape(heir)}, [\d.]+ (?:ms|s) later", after[2])) == len(jobs)
    for created, lost, again in stories.values():
        assert "created" in created
        assert f"attempt 1 on {victim}: lost with its worker" in lost
        assert f"attempt 2 on {heir}: running" in again


def test_a_worker_suspended_past_its_lease_is_refused_on_the_timeline(fleet: Fleet, shown: UiSite) -> None:
    suspended, victim = start_known(fleet)
    [job_id] = fleet.enqueue(1, seconds=ENDLESS_SECONDS)
    fleet.wait_for_starts([job_id])
    suspended.send_signal(signal.SIGSTOP)
    _, heir = start_known(fleet)
    wait_for_second_attempts(fleet, [job_id], heir)

    suspended.send_signal(signal.SIGCONT)
    wait_until(lambda: bool(fleet.driver.inspector.refusals([job_id])), limit=60.0)

    with shown.http() as client:
        story = timeline_of(client, job_id)
    [refused] = [each for each in story if "refused" in each]
    assert f"{victim} tried to extend attempt 1: refused, its lease was lost" in refused
    assert any(f"attempt 2 on {heir}: running" in each for each in story)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations start when they are confirmed, and not 5 s later."""
    monkeypatch.setattr("taskharbor.dashboard.pages.bulk.START_DELAY", timedelta(0))


def kill_jobs(site: UiSite, count: int, queue: str = "payments", *, priority: int = 0) -> list[JobId]:
    """Return jobs that died of the same error."""
    jobs = site.enqueue("charge.card", count, queue=queue, max_attempts=1, priority=priority)
    site.settle(site.claim(queue, count), Outcome.fail("hopeless", failure=CARD_ERROR))
    site.roll_up()
    return jobs


def finish(site: UiSite, operation: Operation) -> Operation:
    """Perform the steps of an operation until it has ended."""
    runner = OperationRunner(site.driver, time.monotonic)

    def has_ended() -> bool:
        runner.tick()
        return not site.driver.operations.get([operation.id])[operation.id].state.is_open

    wait_until(has_ended)
    return site.driver.operations.get([operation.id])[operation.id]


def replay(site: UiSite, client: httpx.Client, *, rate: str = "") -> Operation:
    """Send the form of a group's replay, as the group's page leads to it."""
    group = client.get(f"/ui/dead/{CARD_ERROR.fingerprint}").text
    [link] = re.findall(r'href="/ui(/jobs/bulk\?kind=requeue[^"]+)"', group)
    preview = client.get("/ui" + link.replace("&amp;", "&")).text
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', preview):
        fields.setdefault(name, []).append(value)
    fields.pop("token")
    answer = post(client, "/jobs/bulk", **fields, rate=rate, reason="fixed")
    assert (answer.history or [answer])[0].status_code == 303, answer.text
    [newest] = site.driver.operations.recent(limit=1)
    return newest


@pytest.mark.usefixtures("at_once")
def test_a_replays_outcome_equals_its_preview_and_the_groups_counts(site: UiSite) -> None:
    jobs = kill_jobs(site, 4)
    others = kill_jobs(site, 2, queue="refunds")
    with site.http() as client:
        done = finish(site, replay(site, client))
        late = kill_jobs(site, 1, priority=-1)
        listed = client.get("/ui/dead").text

    assert (done.matched, done.done, dict(done.refused), done.state) == (4, 4, {}, OperationState.DONE)
    assert {status_of(site, each) for each in jobs} == {Status.PENDING}
    assert {status_of(site, each) for each in (*others, *late)} == {Status.DEAD}
    counts = {
        queue: len(site.driver.inspector.find(JobFilter(queue=queue, statuses=frozenset({Status.DEAD})), limit=50).jobs)
        for queue in ("payments", "refunds")
    }
    pattern = r'data-l="Queue">(?:<[^>]+>)*(\w+)<.*?data-l="Jobs">(?:<[^>]+>)*([\d,]+)'
    shown = re.findall(pattern, listed, re.DOTALL)
    assert {queue: int(count) for queue, count in shown} == counts == {"payments": 1, "refunds": 2}


@pytest.mark.usefixtures("at_once")
def test_a_replays_page_says_what_became_of_its_jobs(site: UiSite) -> None:
    jobs = kill_jobs(site, 6)
    site.enqueue("charge.card", 3, queue="payments", delay=3_600)  # of the same type, and not replayed
    with site.http() as client:
        operation = finish(site, replay(site, client))
        claims = site.claim("payments", 5)
        assert {each.job.id for each in claims} <= set(jobs)
        site.settle(claims[:3], Outcome.ack())
        site.settle(claims[3:4], Outcome.fail("hopeless", failure=CARD_ERROR))

        text = client.get(f"/ui/operations/{operation.id}").text

    assert "6 live again: 3 succeeded, 1 waits, 1 runs, 1 died again." in text


@pytest.mark.usefixtures("at_once")
def test_an_operation_continues_without_the_server_that_took_its_form(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with serve_site(url) as first, first.http() as client:
        jobs = kill_jobs(first, 4)
        operation = replay(first, client)

    with serve_site(url) as second, second.http() as client:
        done = finish(second, operation)
        text = client.get(f"/ui/operations/{operation.id}").text
        attempts = [each for each in second.driver.inspector.attempts(jobs) if each.outcome.value == "REQUEUED"]

    assert (done.done, len(attempts)) == (4, 4)
    assert "4 live again" in text
