"""Bulk operations while the processes around them end: the server that took the form, and the person who stops it."""

from __future__ import annotations

import re
import signal
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import httpx

from taskharbor import Harbor
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.operations import OperationState
from taskharbor.core.states import Status
from taskharbor.operations import OperationRunner
from tests.dashboard.test_incidents import kill_jobs, replay
from tests.dashboard.test_jobs import post, status_of
from tests.support.cli_processes import started
from tests.support.dashboard_rig import UiSite
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from taskharbor.core.ids import JobId
    from taskharbor.core.operations import Operation

JOBS: Final = 60
RATE: Final = "10"
APP: Final = "import taskharbor\n\nharbor = taskharbor.Harbor({url!r})\n"


def stored(site: UiSite, operation: Operation) -> Operation:
    return site.driver.operations.get([operation.id])[operation.id]


def requeued(site: UiSite, jobs: list[JobId]) -> list[JobId]:
    """Return the jobs that were requeued, once for each time."""
    attempts = site.driver.inspector.attempts(jobs)
    return [each.job_id for each in attempts if each.outcome is AttemptOutcome.REQUEUED]


@contextmanager
def running(site: UiSite) -> Iterator[OperationRunner]:
    """Perform the steps of operations in a thread, as a janitor does."""
    runner, is_over = OperationRunner(site.driver, time.monotonic), threading.Event()

    def run() -> None:
        while not is_over.wait(0.01):
            runner.tick()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield runner
    finally:
        is_over.set()
        thread.join()


def test_an_operation_outlives_the_killed_api_that_took_its_form(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    (tmp_path / "janitor").mkdir()
    app = APP.format(url=url)
    with (
        Harbor(url) as harbor,
        started(tmp_path, "api", "shop.py", "--port", "0", app=app) as api,
        started(tmp_path / "janitor", "janitor", "shop.py", app=app),
    ):
        wait_until(lambda: "dashboard at" in api.log())
        [address] = re.findall(r"dashboard at (\S+)/ui", api.log())
        site = UiSite(harbor, address, app=None)
        jobs = kill_jobs(site, JOBS)
        with httpx.Client(base_url=address, headers={"Origin": address}) as client:
            operation = replay(site, client, rate=RATE)

        wait_until(lambda: stored(site, operation).done > 0)
        api.send_signal(signal.SIGKILL)
        at_kill = stored(site, operation)
        wait_until(lambda: not stored(site, operation).state.is_open)

        done = stored(site, operation)
        again = requeued(site, jobs)
    assert 0 < at_kill.done < JOBS
    assert (done.state, done.done, dict(done.refused)) == (OperationState.DONE, JOBS, {})
    assert sorted(again) == sorted(jobs)


def test_a_stopped_operation_changes_nothing_after_two_seconds(site: UiSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.dashboard.pages.bulk.START_DELAY", timedelta(0))
    jobs = kill_jobs(site, JOBS)
    with site.http(follow_redirects=True) as client, running(site) as runner:
        operation = replay(site, client, rate="5")
        wait_until(lambda: stored(site, operation).done > 0)
        began = time.monotonic()
        page = post(client, f"/operations/{operation.id}/stop").text
        took = time.monotonic() - began
        changed = len(requeued(site, jobs))
        for _ in range(20):
            runner.tick()

    stopped = stored(site, operation)
    assert took < 2
    assert (stopped.state, stopped.done) == (OperationState.STOPPED, changed)
    assert 0 < changed < JOBS
    assert len(requeued(site, jobs)) == changed
    assert [status_of(site, each) for each in jobs].count(Status.DEAD) == JOBS - changed
    assert f"Stopped after {changed} job" in page
