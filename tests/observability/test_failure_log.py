"""Log lines about outages and repeated errors: few, whatever the number of loops and tries."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from taskharbor import MemoryDriver
from taskharbor.api.sse import EventFeed, StreamBuffer
from taskharbor.core.errors import SchemaOutOfDate, StoreUnavailable
from taskharbor.delivery.transport import TransportUnavailable
from taskharbor.observability.failure_log import COUNT_SECONDS, QUEUE_SERVICE, QUIET_SECONDS, STORE, FailureLog
from taskharbor.runtime import ThreadRuntime
from tests.support.delivery_rig import DeliveryRig
from tests.support.waiting import wait_until
from tests.support.worker_rig import Outage, ended, enqueue, meddled, running_worker

REFUSED = StoreUnavailable("connection refused", retry_in=timedelta(seconds=0.3))


class Times:
    """A clock that a test moves, and the lines that a failure log has written by it."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.seconds = 100.0
        self._caplog = caplog
        self.log = FailureLog(logging.getLogger("taskharbor.runtime"), lambda: self.seconds)

    def fail(self, seconds: float, *, every: float = 0.25) -> None:
        """Let calls fail for *seconds*."""
        for _ in range(round(seconds / every)):
            self.log.unavailable(STORE, REFUSED)
            self.seconds += every

    @property
    def lines(self) -> list[str]:
        return self._caplog.messages


@pytest.fixture
def times(caplog: pytest.LogCaptureFixture) -> Times:
    return Times(caplog)


def test_an_outage_is_one_line_at_its_begin_one_at_its_end_and_a_count_in_between(times: Times) -> None:
    times.fail(70)
    for _ in range(10):
        times.log.available(STORE)
        times.seconds += 1

    assert times.lines == [
        "store unavailable; retrying: connection refused",
        "store unavailable for 30 s; failed calls: 121; retrying: connection refused",
        "store unavailable for 60 s; failed calls: 241; retrying: connection refused",
        "store available again after 70 s; failed calls: 280",
    ]


def test_a_call_that_fails_late_does_not_begin_another_outage(times: Times) -> None:
    times.fail(1)
    times.log.available(STORE)
    times.seconds += 0.5
    times.log.unavailable(STORE, REFUSED)  # began during the outage
    times.log.available(STORE)
    times.seconds += QUIET_SECONDS[STORE]
    times.log.available(STORE)

    assert times.lines == [
        "store unavailable; retrying: connection refused",
        "store available again after 1.5 s; failed calls: 5",
    ]


def test_a_store_that_accepts_reads_and_fails_at_writes_is_one_outage(times: Times) -> None:
    for _ in range(20):
        times.log.unavailable(STORE, REFUSED)
        times.log.available(STORE)
        times.seconds += 1

    assert len(times.lines) == 1


def test_the_queue_service_has_its_own_outage(times: Times) -> None:
    times.log.unavailable(STORE, REFUSED)
    times.log.unavailable(QUEUE_SERVICE, TransportUnavailable("timeout"), meanwhile="polling the store")
    times.seconds += QUIET_SECONDS[QUEUE_SERVICE]
    times.log.available(QUEUE_SERVICE)

    assert times.lines[1:] == [
        "queue service unavailable; polling the store: timeout",
        "queue service available again after 500 ms; failed calls: 1",
    ]


def test_an_unexpected_error_has_its_traceback_once_and_is_then_counted(
    times: Times, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(round(COUNT_SECONDS) + 1):
        times.log.unexpected("recording outcomes", ZeroDivisionError("by zero"))
        times.seconds += 1
    times.log.unexpected("recording outcomes", ValueError("another one"))

    assert times.lines == [
        "recording outcomes failed; retrying",
        "recording outcomes failed 30 more times; retrying: ZeroDivisionError: by zero",
        "recording outcomes failed; retrying",
    ]
    assert [each.exc_info is not None for each in caplog.records] == [True, False, True]


def test_an_error_that_says_what_to_do_has_no_traceback(times: Times, caplog: pytest.LogCaptureFixture) -> None:
    times.log.unexpected("janitor loop", SchemaOutOfDate("version 1", "version 2", "run 'taskharbor migrate up'"))

    [line] = times.lines
    assert line.startswith("janitor loop failed; retrying: the store's schema is version 1, this code needs version 2")
    assert not caplog.records[0].exc_info


def test_a_loop_that_keeps_failing_logs_one_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ticks = list[int]()

    def tick() -> timedelta | None:
        ticks.append(1)
        if len(ticks) < 50:
            raise LookupError("no such row")
        return None

    monkeypatch.setattr("taskharbor.thread_loop.ERROR_PAUSE", timedelta(milliseconds=1))
    loop = ThreadRuntime(sync_threads=1).serve("recorder", tick)

    assert loop.join(timedelta(seconds=20))
    assert caplog.messages == ["recorder loop failed; retrying"]


def test_an_outage_under_a_running_worker_is_two_lines_for_all_its_loops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taskharbor.observability.failure_log.QUIET_SECONDS", {STORE: 0.05})
    outage, driver = Outage(), MemoryDriver()
    with running_worker(meddled(driver, outage), {"run": lambda _job: None}, lease=timedelta(milliseconds=600)):
        outage.begin()
        wait_until(lambda: len(outage.refused) > 40)
        outage.end()
        wait_until(lambda: "available again" in caplog.text)
        job_id = enqueue(driver, "run")
        ended(driver, job_id)

    assert len({*outage.refused}) > 2  # several loops have called
    [began, back] = caplog.messages
    assert began == "store unavailable; retrying: made unavailable by a test"
    assert back.startswith("store available again after ")


def test_an_outage_of_the_queue_service_is_two_lines_for_all_queues_of_an_enqueuer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = DeliveryRig()
    for queue in ("mail", "images", "reports"):
        rig.enqueue(queue=queue)
    rig.service.broken.add("send")
    enqueuer = rig.enqueuer(queues=["mail", "images", "reports"])
    enqueuer.start()
    rig.run(10)
    rig.service.broken.clear()
    rig.run(60)

    [began, back] = caplog.messages
    assert began == "queue service unavailable; retrying: send is broken"
    assert back.startswith("queue service available again after ")
    assert [rig.left(queue) for queue in ("mail", "images", "reports")] == [1, 1, 1]


def test_an_outage_of_the_store_is_two_lines_for_all_loops_of_an_enqueuer(caplog: pytest.LogCaptureFixture) -> None:
    rig, outage = DeliveryRig(), Outage()
    job_id = rig.enqueue()
    outage.begin()
    rig.enqueuer(meddled(rig.driver, outage)).start()
    rig.run(20)
    outage.end()
    rig.run(10)

    [began, back] = caplog.messages
    assert began == "store unavailable; retrying: made unavailable by a test"
    assert back.startswith("store available again after 21 s; failed calls: ")
    assert rig.job(job_id).sends == 1


def test_an_outage_under_an_event_feed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taskharbor.api.sse.POLL_SECONDS", 0.001)

    async def follow() -> None:
        polls, are_many = list[int](), asyncio.Event()

        async def fail(_call: object, **_options: object) -> None:
            polls.append(1)
            if len(polls) > 20:
                are_many.set()
            raise REFUSED

        feed = EventFeed(cast("Any", SimpleNamespace(call=fail)))
        buffer = StreamBuffer()
        feed.join(buffer)
        await are_many.wait()
        feed.leave(buffer)

    asyncio.run(asyncio.wait_for(follow(), 20))

    assert caplog.messages == ["store unavailable; retrying: connection refused"]
