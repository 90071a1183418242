"""Handlers that block the event loop, or hold the GIL in C code, are named in the log."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import threading
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor import Client, JobRequest, Status
from taskharbor.drivers.connect import connect
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.observability.job_log import job_fields
from taskharbor.runtime import ThreadRuntime
from taskharbor.worker.stalls import StallDetector
from tests.support.cli_processes import LIMIT_SECONDS, started
from tests.support.stages import slots_without_prefetch
from tests.support.waiting import wait_until
from tests.support.worker_rig import enqueue, running_worker

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from taskharbor.core.model import Job

SHORT: Final = timedelta(milliseconds=100)
APP: Final = """
import re

def search(job):
    for _ in range(8):  # the first one may begin while an idle detector pauses
        re.match(r"(a+)+$", "a" * 24 + "b")  # exponential, and it does not release the GIL

handlers = {"search": search}
"""


def test_a_handler_that_blocks_the_event_loop_is_logged_once_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    driver, may_return = MemoryDriver(), threading.Event()
    claimed: list[Job] = []

    async def block(job: Job) -> None:
        claimed.append(job)
        may_return.wait(LIMIT_SECONDS)

    async def wait(_job: Job) -> None:
        await asyncio.sleep(0)

    handlers: dict[str, Any] = {"block": block, "wait": wait}
    with caplog.at_level(logging.WARNING, "taskharbor"), running_worker(driver, handlers, stall_after=SHORT) as worker:
        waiting = [enqueue(driver, "wait") for _ in range(3)]
        wait_until(lambda: all(driver.inspector.get([each])[each].status is Status.SUCCEEDED for each in waiting))
        job_id = enqueue(driver, "block")
        wait_until(lambda: any("has blocked the event loop" in line for line in caplog.messages))
        wait_until(lambda: worker.watched.event_loop_wait() > 5 * SHORT.total_seconds())
        may_return.set()
        wait_until(lambda: driver.inspector.get([job_id])[job_id].status is Status.SUCCEEDED)

    [record] = [record for record in caplog.records if "event loop" in record.getMessage()]
    line = record.getMessage()
    assert vars(record) | job_fields(claimed[0]) == vars(record)
    assert line.startswith(f"job {job_id} (block) has blocked the event loop for ")
    assert "may_return.wait(LIMIT_SECONDS)" in line
    assert "await asyncio.to_thread(...)" in line


def test_a_handler_that_waits_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    driver, began, may_return = MemoryDriver(), threading.Event(), threading.Event()

    async def wait(_job: Job) -> None:
        began.set()
        await asyncio.to_thread(may_return.wait, LIMIT_SECONDS)

    with caplog.at_level(logging.WARNING, "taskharbor"), running_worker(driver, {"wait": wait}, stall_after=SHORT):
        enqueue(driver, "wait")
        assert began.wait(LIMIT_SECONDS)
        threading.Event().wait(5 * SHORT.total_seconds())
        may_return.set()

    assert not any("event loop" in line for line in caplog.messages)


class StalledRuntime(ThreadRuntime):
    """Its clocks are set by the test."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def process_time(self) -> float:
        return self.seconds


def test_stacks_of_the_middle_of_a_stall_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, written = StalledRuntime(sync_threads=1), list[int]()
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda _, *, file, **_repeat: written.append(file))
    detector = StallDetector(runtime, slots_without_prefetch(runtime, concurrency=1, queues={}), after=SHORT)
    detector.dump_stacks()
    with closing(detector):
        detector.tick()
        for moment in ("before", "during", "after"):
            os.write(written[0], f"Timeout (0:00:00.1)!\nThread 1:\n  {moment} it\n".encode())
        runtime.seconds = 60.0
        detector.tick()
        runtime.seconds = 120.0
        detector.tick()

    first, second = [line for line in caplog.messages if "ran no Python code" in line]
    assert first.endswith("stacks:\nTimeout (0:00:00.1)!\nThread 1:\n  during it")
    assert "Thread" not in second


def test_a_handler_that_holds_the_gil_is_logged_with_its_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with (
        closing(connect(url)) as driver,
        started(tmp_path, "worker", "shop.py", "--url", url, "--stall-after", "200ms", app=APP) as worker,
    ):
        job_id = Client(driver).enqueue(JobRequest(type="search")).id
        wait_until(lambda: "in search" in worker.log())
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_SECONDS) == 0

    _, warning, stacks = worker.log().partition(f"while it ran {job_id} (search)")
    assert warning
    assert "shop.py" in stacks
