"""What is refused when a worker with isolated tasks starts, and how its children find the app."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import pytest

from taskharbor import Harbor, MemoryDriver, UsageError, Worker
from taskharbor.core.states import Status
from taskharbor.task_registry import name_of_app
from tests.support import isolated_app as app
from tests.support.isolation_rig import processes

if TYPE_CHECKING:
    from pathlib import Path

    from taskharbor.task_options import TaskOptions
    from tests.support.isolation_rig import IsolationRig


def test_a_harbor_is_found_by_its_module_and_attribute() -> None:
    assert name_of_app(app.harbor) == "tests.support.isolated_app:harbor"
    assert name_of_app(Harbor("memory://")) is None


def test_a_harbor_without_a_name_is_refused(tmp_path: Path) -> None:
    with Harbor(f"sqlite:///{tmp_path}/jobs.db") as harbor:
        harbor.task(isolate=True)(lambda_free)

        with pytest.raises(UsageError, match="child processes must import the harbor"):
            harbor.worker().start()


def lambda_free() -> None:
    """Do nothing."""


def test_a_store_in_memory_is_refused() -> None:
    worker = Worker(MemoryDriver(), isolate=True)
    worker.register("noop", lambda _: None)

    with pytest.raises(UsageError, match="another process cannot use a store in memory"):
        worker.start()


def test_middleware_with_an_isolated_task_is_refused() -> None:
    worker = Worker(MemoryDriver(), middleware=[lambda job, ctx, call: call(job, ctx)])

    with pytest.raises(UsageError, match="middleware cannot run in another process"):
        worker.register("noop", lambda _: None, isolate=True)


def test_a_task_that_children_cannot_import_is_refused(rig: IsolationRig) -> None:
    worker = rig.worker()
    worker.register("local", lambda _: None, isolate=True)

    with pytest.raises(UsageError, match=r"local.* does not define it when it is imported in another process"):
        worker.start()

    assert not processes()


def test_an_app_that_cannot_be_imported_is_refused_with_its_error(rig: IsolationRig) -> None:
    (rig.folder / "broken_app.py").write_text("import no_such_module\n")
    worker = rig.worker()
    worker.use_app(str(rig.folder / "broken_app.py"))

    with pytest.raises(UsageError, match="no_such_module"):
        worker.start()


def test_a_worker_whose_lifespan_fails_leaves_no_process(rig: IsolationRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOLATED_APP_BROKEN", "1")

    with pytest.raises(LookupError):
        rig.worker().start()

    assert not processes()


def test_other_systems_than_linux_are_refused(rig: IsolationRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(UsageError, match="needs Linux"):
        rig.worker().start()


def test_an_app_that_starts_threads_gets_children_in_new_interpreters(
    rig: IsolationRig, caplog: pytest.LogCaptureFixture
) -> None:
    file = rig.folder / "threaded_app.py"
    file.write_text(
        "import threading\n"
        "from tests.support.isolated_app import harbor\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    handle = app.pid_of_child.enqueue()
    worker = rig.worker()
    worker.use_app(f"{file}:harbor", f"sqlite:///{rig.file}")

    with caplog.at_level(logging.WARNING):
        worker.drain()

    assert handle.status() is Status.SUCCEEDED
    assert "start slowly, as new interpreters: it has started 1 threads" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "much"}, "write a size with its unit"),
        ({"memory": 0}, "must be at least 1 byte"),
        ({"memory": "1MB", "isolate": False}, "leave out isolate=False"),
    ],
)
def test_invalid_limits_are_refused_when_a_task_is_defined(options: TaskOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Harbor("memory://").task(**options)(lambda_free)


def test_a_memory_limit_implies_isolation() -> None:
    harbor = Harbor("memory://")

    task = harbor.task(memory="1MB")(lambda_free)

    assert task.handler_options(harbor.policy)["isolate"] is True
    assert task.handler_options(harbor.policy)["memory_bytes"] == 1 << 20


def test_isolated_tasks_run_in_the_test_itself_with_the_harness() -> None:
    with app.harbor.testing() as jobs:
        handle = app.pid_of_child.enqueue()

        jobs.drain()

        assert handle.status() is Status.SUCCEEDED
