"""A worker whose codec is not the store's claims nothing."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from taskharbor import Harbor, JobRequest, MemoryDriver, PostgresDriver, Status, Worker
from taskharbor.client import Client
from taskharbor.core.errors import CodecMismatch, SchemaOutOfDate, StoreRefused, StoreUnavailable
from taskharbor.crypto import AesGcmCodec
from taskharbor.schedules import ScheduleSpec
from tests.support.postgres import database, server
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.worker_rig import LONG, enqueue, running_worker, stored, worker_for

AES = AesGcmCodec({"k": bytes(32)})


class Away(MemoryDriver):
    """A store that is unavailable for the first reads of its settings."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def remember(self, name: str, value: str) -> str:
        if self.times:
            self.times -= 1
            raise StoreUnavailable("unplugged by a test")
        return super().remember(name, value)


def greet(name: str) -> str:
    return f"hello {name}"


def encrypted(driver: MemoryDriver) -> Any:
    return Client(driver, codec=AES).enqueue(JobRequest(type="greet", payload="Ada")).id


@pytest.mark.parametrize("begin", ["start", "drain", "run"])
def test_a_worker_with_another_codec_does_not_start_and_fails_no_job(begin: str) -> None:
    driver = MemoryDriver()
    job_id = encrypted(driver)
    worker = worker_for(driver, {"greet": print})

    with pytest.raises(CodecMismatch, match="'aes-gcm\\+json', not 'json'"):
        getattr(worker, begin)()

    assert (stored(driver, job_id).status, stored(driver, job_id).attempt_count) == (Status.PENDING, 0)
    assert driver.inspector.workers() == []


def test_a_worker_that_starts_first_records_its_codec() -> None:
    driver = MemoryDriver()

    with running_worker(driver, {"greet": print}), pytest.raises(CodecMismatch):
        encrypted(driver)

    assert driver.inspector.settings() == {"codec": "json"}


def test_a_worker_starts_while_the_store_is_away_and_checks_before_it_claims(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = Away(0)
    job_id = enqueue(driver, "greet")
    driver.times = 1

    with caplog.at_level(logging.WARNING), running_worker(driver, {"greet": lambda _: None}):
        wait_until(lambda: stored(driver, job_id).status is Status.SUCCEEDED)

    assert "store unavailable; retrying: unplugged by a test" in caplog.text


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """Return a worker that finds out after its start that the store has another codec."""
    monkeypatch.setattr("taskharbor.worker.codec_check.RETRY_PAUSE", timedelta(milliseconds=10))
    driver = Away(0)
    encrypted(driver)
    driver.times = 2
    return worker_for(driver, {"greet": print}, grace=timedelta(seconds=1))


def test_a_mismatch_that_is_found_late_stops_the_worker(late: Worker, caplog: pytest.LogCaptureFixture) -> None:
    late.start()

    wait_until(lambda: late.is_over)

    with pytest.raises(CodecMismatch):
        late.codec_check.raise_refusal()
    assert "stopping worker: the payloads in this store" in caplog.text


def test_a_mismatch_that_is_found_late_ends_a_drain(late: Worker) -> None:
    with pytest.raises(CodecMismatch):
        late.drain(LONG / 4)


def test_a_mismatch_that_is_found_late_ends_a_run(late: Worker) -> None:
    watchdog = threading.Timer(10, late.begin_stop)
    watchdog.start()

    with pytest.raises(CodecMismatch):
        late.run()

    watchdog.cancel()


@pytest.mark.parametrize("begin", ["start", "drain", "run"])
def test_a_worker_on_a_store_without_tables_does_not_start(begin: str) -> None:
    with database(migrated=False) as url, Harbor(url) as harbor:
        harbor.task(greet)

        with pytest.raises(SchemaOutOfDate, match="run 'taskharbor migrate up'"):
            getattr(harbor.worker(), begin)()


@pytest.mark.parametrize("begin", ["start", "drain", "run"])
def test_a_worker_that_the_store_refuses_does_not_start(begin: str) -> None:
    with Harbor(f"{server().url}_no_such_database") as harbor, pytest.raises(StoreRefused, match="does not exist"):
        getattr(harbor.worker(), begin)()


def test_a_store_that_returns_without_tables_stops_the_worker_with_few_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taskharbor.worker.codec_check.RETRY_PAUSE", timedelta(milliseconds=10))
    with database(migrated=False) as url, Proxy(url) as proxy, closing(PostgresDriver(proxy.url)) as driver:
        proxy.refuse()
        worker = worker_for(driver, {"greet": print})
        worker.start()
        proxy.accept()

        wait_until(lambda: worker.is_over)

    with pytest.raises(SchemaOutOfDate, match="run 'taskharbor migrate up'"):
        worker.codec_check.raise_refusal()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors
    assert [record for record in errors if record.exc_info] == []


def test_a_worker_can_be_stopped_while_the_store_is_still_away() -> None:
    driver = Away(1_000_000)
    worker = worker_for(driver, {"greet": print})
    worker.start()
    began = time.monotonic()

    worker.stop(timedelta(0))

    assert worker.is_over
    assert time.monotonic() - began < LONG.total_seconds() / 2  # not only after a lease
    worker.codec_check.raise_refusal()


def test_the_schedules_of_a_worker_are_written_with_its_codec_or_not_at_all() -> None:
    driver = MemoryDriver()
    encrypted(driver)
    worker = worker_for(driver, {"greet": print}, schedules=[ScheduleSpec(name="s", cron="0 * * * *", type="greet")])

    with pytest.raises(CodecMismatch):
        worker.drain(LONG)

    assert driver.inspector.schedules() == {}
