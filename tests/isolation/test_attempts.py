"""An attempt in a child process means the same as one in a thread."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.results import JobFilter
from taskharbor.core.states import Status
from taskharbor.core.text import duration_text
from tests.support import isolated_app as app
from tests.support.postgres import database
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.isolation_rig import IsolationRig


def test_isolated_tasks_run_in_children_and_others_in_the_worker(rig: IsolationRig) -> None:
    isolated, awaited, ordinary = (
        task.enqueue() for task in (app.pid_of_child, app.pid_of_async_child, app.pid_of_worker)
    )

    rig.drain()

    assert ordinary.result() == os.getpid()
    assert {isolated.result(), awaited.result()}.isdisjoint({os.getpid()})


def test_a_worker_with_isolate_isolates_all_tasks(rig: IsolationRig) -> None:
    handle = app.pid_of_worker.enqueue()

    rig.drain(isolate=True)

    assert handle.result() != os.getpid()


def test_a_child_has_the_job_its_lease_and_its_arguments(rig: IsolationRig) -> None:
    call = app.describe.using(queue="images", metadata={"tenant": "é"}, timeout=60)
    handle = call.enqueue({"n": 1})

    rig.drain(queues=["images"])

    job, known = handle.job(), handle.result()
    assert job.processing_started_at is not None
    assert known == {
        "job": str(handle.id),
        "attempt": 1,
        "token": str(job.settled_token),
        "queue": "images",
        "metadata": {"tenant": "é"},
        "deadline": (job.processing_started_at + timedelta(seconds=60)).isoformat(),
        "value": {"n": 1},
    }


def test_log_lines_and_output_of_a_child_arrive_in_the_worker(
    rig: IsolationRig, caplog: pytest.LogCaptureFixture
) -> None:
    app.describe.enqueue({})

    with caplog.at_level(logging.INFO):
        rig.drain()

    records = {record.name: record for record in caplog.records}
    assert records["shop.images"].getMessage() == "resized 3 images"
    assert records["shop.images"].process != os.getpid()
    assert records["taskharbor.output"].getMessage() == "printed by the handler"


def test_captured_log_lines_of_a_child_are_kept_with_the_attempt(
    rig: IsolationRig, caplog: pytest.LogCaptureFixture
) -> None:
    handle = app.describe.enqueue({})

    with caplog.at_level(logging.INFO):
        rig.drain(capture_logs=True)

    [kept] = app.harbor.driver.attempt_logs.read([handle.id])
    assert {line.text for line in kept.lines} == {"resized 3 images", "printed by the handler"}


def test_output_beyond_its_limit_is_dropped(rig: IsolationRig, caplog: pytest.LogCaptureFixture) -> None:
    app.write_a_lot.using(max_attempts=1).enqueue(2)

    with caplog.at_level(logging.INFO, "taskharbor.output"):
        rig.drain()

    lines = [record.getMessage() for record in caplog.records if record.name == "taskharbor.output"]
    assert lines[-1] == "this attempt has written more than 65536 bytes; the rest is not logged"
    assert sum(map(len, lines)) < 3 * 65_536


@pytest.mark.parametrize(
    ("name", "status", "error"),
    [
        ("retry", Status.FAILED, "taskharbor.Retry: later"),
        ("snooze", Status.PENDING, None),
        ("cancel", Status.CANCELED, None),
        ("dead", Status.DEAD, "taskharbor.DeadLetter: wrong address"),
        ("value", Status.FAILED, "ValueError: 3 is too many"),
        ("exit", Status.FAILED, "SystemExit: 3"),
    ],
)
def test_what_a_child_raises_means_the_same(rig: IsolationRig, name: str, status: Status, error: str | None) -> None:
    handle = app.raise_by_name.enqueue(name)

    rig.drain()

    job = handle.job()
    assert (job.status, job.last_error) == (status, error)
    if name in {"retry", "snooze"}:
        delay = job.scheduled_for - app.harbor.driver.inspector.now()
        assert duration_text(delay.total_seconds()) == "21 min"


def test_the_traceback_of_a_child_has_the_lines_of_the_handler(rig: IsolationRig) -> None:
    handle = app.raise_by_name.enqueue("value")

    rig.drain()

    failure = rig.failure(handle)
    assert failure.traceback.splitlines()[-2].strip() == "raise errors[name]"
    assert "executor" not in failure.traceback
    assert failure.fingerprint


def test_the_worker_redacts_what_a_child_raises(rig: IsolationRig) -> None:
    handle = app.raise_by_name.enqueue("value")

    rig.drain(redact=lambda text: text.replace("3 is", "X is"))

    assert handle.job().last_error == "ValueError: X is too many"


@pytest.mark.parametrize(("commits", "status"), [(True, Status.SUCCEEDED), (False, Status.FAILED)])
def test_complete_in_a_child_settles_with_its_transaction(rig: IsolationRig, *, commits: bool, status: Status) -> None:
    handle = app.complete_in.enqueue(str(rig.file), commits=commits)

    rig.drain()

    job = handle.job()
    assert job.status is status
    assert commits or job.last_error == (
        "taskharbor.NotCommitted: the handler called complete_in, but its transaction was not committed"
    )


def test_a_child_uses_the_store_of_its_worker(rig: IsolationRig) -> None:
    with database() as url:
        app.harbor.use_store(url)
        try:
            handle = app.complete_in_postgres.enqueue(url)

            rig.drain()

            assert handle.status() is Status.SUCCEEDED
            assert len(app.harbor.driver.inspector.find(JobFilter(queue="later"), limit=2).jobs) == 1
        finally:
            app.harbor.close()


def test_each_child_has_a_lifespan_of_its_own(
    rig: IsolationRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISOLATED_APP_FOLDER", str(tmp_path))
    handles = [app.state_of_child.enqueue() for _ in range(3)]

    rig.drain(concurrency=1, isolate=True)

    results: list[Any] = [handle.result() for handle in handles]
    [pid] = {pid for pid, _, _ in results}
    assert results == [[pid, pid, number] for number in (1, 2, 3)]
    assert [file.name for file in tmp_path.glob("left-*")] == [f"left-{pid}"]  # the worker itself had none


def test_a_result_that_is_too_large_fails_its_attempt_only(rig: IsolationRig) -> None:
    large, small = app.return_a_lot.enqueue(2), app.pid_of_child.enqueue()

    rig.drain(concurrency=1)

    assert large.job().status is Status.DEAD
    assert "its result cannot be stored" in str(large.job().dead_reason)
    assert small.job().status is Status.SUCCEEDED


def test_the_last_of_many_reports_of_progress_is_saved(rig: IsolationRig) -> None:
    handle = app.report_progress.enqueue(20_000)

    with rig.running():
        wait_until(lambda: (progress := handle.progress()) is not None and progress.done == 20_000)
