"""A worker that ends when its memory has grown."""

from __future__ import annotations

import pytest

from taskharbor import Client, JobRequest, MemoryDriver, UsageError, Worker
from taskharbor.service import RECYCLED_EXIT
from taskharbor.worker import recycling as module
from tests.support.waiting import wait_until

LIMIT_BYTES = 1 << 30


def test_a_limit_that_a_worker_exceeds_at_its_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "memory_used", lambda: 90 << 20)
    worker = Worker(MemoryDriver(), max_memory=80 << 20)
    worker.register("noop", lambda _: None)

    with pytest.raises(UsageError, match="80 MB: this process uses 90 MB after its start, before any job"):
        worker.start()


def test_a_worker_that_has_grown_does_not_end_before_its_first_job(monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([LIMIT_BYTES])  # at its start
    monkeypatch.setattr(module, "memory_used", lambda: next(used, LIMIT_BYTES + 1))
    driver = MemoryDriver()
    worker = Worker(driver, max_memory=LIMIT_BYTES)
    worker.register("noop", lambda _: None)
    worker.start()

    worker._recycling.tick()  # noqa: SLF001  as its loop does
    is_due_before = worker._recycling.is_due  # noqa: SLF001
    Client(driver).enqueue(JobRequest(type="noop", payload={}))
    wait_until(lambda: worker.exit_code == RECYCLED_EXIT)
    worker.stop()

    assert not is_due_before
