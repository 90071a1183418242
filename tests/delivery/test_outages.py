"""Jobs during outages and partial failures of SQS, and dead-letter events meanwhile.

The store is PostgreSQL, SQS an HTTP endpoint. `benchmarks/sqs_outages.py` runs the same scenarios for minutes.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.client import Client
from taskharbor.core.request import JobRequest
from taskharbor.core.retry import Fixed, RetryPolicy
from taskharbor.core.states import FINAL, Status
from taskharbor.delivery.sqs import SqsTransport
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, QueueSpec
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.enqueuer import DueTaskEnqueuer
from taskharbor.runtime import ThreadRuntime
from taskharbor.testing.sqs import Endpoint, EndpointFaults
from taskharbor.worker import Worker
from tests.support.audit import audit
from tests.support.postgres import emptied
from tests.support.transport_subjects import REGION, raw_client
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job

NAME: Final = "taskharbor-default"
NOW: Final = timedelta(0)
SECOND: Final = timedelta(seconds=1)
LEASE: Final = timedelta(seconds=20)  # long enough that none expires: every job runs once
LIMIT_SECONDS: Final = 60.0  # far more than any wait takes
UNSENDABLE: Final = EndpointFaults(errors={"AccessDenied": 1}, operations=frozenset({"SendMessageBatch"}))
EVERYTHING: Final = [
    QueueSpec(name=name, visibility=SECOND, retention=LEASE * 10) for name in ("default", DEAD_EVENTS_QUEUE)
]


class Scene:
    """A store, SQS, workers and enqueuers in this process, with a record of the runs."""

    def __init__(self, driver: PostgresDriver, endpoint: Endpoint, stack: ExitStack) -> None:
        self.driver, self.endpoint = driver, endpoint
        self._stack = stack
        self.transport = self._connected()
        self.transport.ensure_queues(EVERYTHING)
        self.jobs: list[JobId] = []
        self.ran: list[tuple[JobId, float]] = []
        self.may_end = Event()
        self.may_end.set()

    def start_workers(self, count: int = 2, *, overdue_after: timedelta = SECOND) -> None:
        for _ in range(count):
            worker = Worker(
                self.driver,
                lease=LEASE,
                heartbeat=SECOND / 3,
                poll=timedelta(milliseconds=50),
                transport=self._connected(),
                visibility=SECOND,
                receive_wait=SECOND,
                overdue_after=overdue_after,
            )
            worker.register("note", self._note)
            worker.register("fail", self._fail, policy=RetryPolicy(backoff=Fixed(timedelta(milliseconds=10))))
            worker.start()
            self._stack.callback(worker.stop, NOW)

    def start_enqueuer(self) -> None:
        runtime, period = ThreadRuntime(sync_threads=1), timedelta(milliseconds=50)
        enqueuer = DueTaskEnqueuer(
            runtime,
            self.driver,
            self._connected(),
            queues=["default"],
            max_idle=period,
            lock=2 * SECOND,
            resend_after=2 * SECOND,
        )
        enqueuer.start()
        self._stack.callback(enqueuer.stop)

    def enqueue(self, count: int, type: str = "note", **fields: Any) -> list[JobId]:
        new = [each.id for each in Client(self.driver).enqueue_many([JobRequest(type=type, **fields)] * count)]
        self.jobs += new
        return new

    def is_done(self) -> bool:
        return all(job.status in FINAL for job in self.driver.inspector.get(self.jobs).values())

    def wait_until_done(self) -> float:
        return wait_until(self.is_done, limit=LIMIT_SECONDS)

    def is_drained(self) -> bool:
        """Whether no message for a job is left."""
        return sum(self.endpoint.depth(NAME)) == 0

    def runs(self) -> Counter[JobId]:
        return Counter(job_id for job_id, _ in self.ran)

    def events(self) -> list[dict[str, Any]]:
        """Return the events in the queue of dead-letter events."""
        found = self.transport.receive(DEAD_EVENTS_QUEUE, most=10, wait=NOW, visibility=LEASE)
        return [json.loads(each.body) for each in found]

    def _connected(self) -> SqsTransport:
        transport = SqsTransport(endpoint_url=self.endpoint.url, region=REGION, answer_within=SECOND)
        self._stack.callback(transport.close)
        return transport

    def _note(self, job: Job) -> None:
        self.ran.append((job.id, time.monotonic()))
        assert self.may_end.wait(LIMIT_SECONDS)

    def _fail(self, job: Job) -> None:
        self.ran.append((job.id, time.monotonic()))
        raise ValueError("always fails")


@contextmanager
def scene_at(url: str) -> Iterator[Scene]:
    with (
        Endpoint.start(seed=1) as endpoint,
        closing(PostgresDriver(url, deadline=timedelta(seconds=5))) as driver,
        ExitStack() as stack,
    ):
        yield Scene(driver, endpoint, stack)
        assert audit(driver) == []


@pytest.fixture
def scene() -> Iterator[Scene]:
    with scene_at(emptied()) as made:
        yield made


def test_jobs_run_during_an_sqs_outage_and_none_runs_twice_afterwards(scene: Scene) -> None:
    figures = outlive(scene, seconds=3, jobs=10)

    assert figures["jobs run while it was away"] == 10


def outlive(scene: Scene, *, seconds: float, jobs: int) -> dict[str, Any]:
    """Take SQS down for *seconds* under load. Every job must run exactly once."""
    scene.start_enqueuer()
    scene.may_end.clear()
    scene.start_workers()
    scene.enqueue(jobs)
    wait_until(lambda: len(scene.ran) == jobs, limit=LIMIT_SECONDS)  # all by messages, which cannot be deleted now
    scene.endpoint.go_away()
    scene.may_end.set()
    left_at = time.monotonic()
    stored = [_stored(scene) for _ in range(jobs)]
    scene.wait_until_done()
    while_away = sum(at > left_at for _, at in scene.ran)
    Event().wait(max(0.0, left_at + seconds - time.monotonic()))
    asked = scene.endpoint.requests["ReceiveMessage"]
    scene.endpoint.come_back()
    back_at = time.monotonic()
    scene.enqueue(jobs)
    again = wait_until(lambda: scene.endpoint.requests["ReceiveMessage"] > asked, limit=LIMIT_SECONDS)
    scene.wait_until_done()
    wait_until(scene.is_drained, limit=LIMIT_SECONDS)
    assert scene.runs() == dict.fromkeys(scene.jobs, 1), "a job ran twice, or not at all"
    return {
        "seconds away": round(back_at - left_at, 1),
        "slowest enqueue while it was away, in milliseconds": round(1_000 * max(stored), 1),
        "jobs run while it was away": while_away,
        "seconds until it was asked again": round(again, 1),
        "jobs": len(scene.jobs),
    }


def _stored(scene: Scene) -> float:
    start = time.monotonic()
    scene.enqueue(1)
    return time.monotonic() - start


def test_jobs_run_while_messages_can_be_received_but_not_sent(scene: Scene) -> None:
    figures = bypass(scene, jobs=10)

    assert figures["jobs run without a message"] == 10


def bypass(scene: Scene, *, jobs: int) -> dict[str, Any]:
    """Refuse sends, then allow them again."""
    scene.endpoint.faults = UNSENDABLE
    scene.start_enqueuer()
    scene.start_workers()
    scene.enqueue(jobs)
    took = scene.wait_until_done()
    assert scene.is_drained()
    bypassed = len(scene.ran)
    scene.endpoint.faults = EndpointFaults()
    refused = scene.endpoint.requests["SendMessageBatch"]
    again = wait_until(lambda: _is_sending(scene, refused), limit=LIMIT_SECONDS)
    scene.wait_until_done()
    wait_until(scene.is_drained, limit=LIMIT_SECONDS)
    assert scene.runs() == dict.fromkeys(scene.jobs, 1), "a job ran twice, or not at all"
    return {
        "jobs": len(scene.jobs),
        "jobs run without a message": bypassed,
        "seconds that took": round(took, 1),
        "seconds until messages were sent again": round(again, 1),
    }


def _is_sending(scene: Scene, refused: int) -> bool:
    """Return whether a message was sent since; enqueue another job if none is waiting."""
    if scene.is_done():
        scene.enqueue(1)
    return scene.endpoint.requests["SendMessageBatch"] > refused


def test_jobs_run_late_after_sqs_is_switched_off(scene: Scene) -> None:
    figures = do_without(scene, jobs=10)

    assert figures["jobs"] == 20


def do_without(scene: Scene, *, jobs: int) -> dict[str, Any]:
    """Take SQS down with messages in it for good. Workers and an enqueuer that start later cannot reach it."""
    scene.start_enqueuer()
    scene.enqueue(jobs)
    wait_until(lambda: scene.endpoint.depth(NAME)[0] == jobs, limit=LIMIT_SECONDS)
    scene.endpoint.go_away()
    scene.start_enqueuer()
    scene.start_workers()
    scene.enqueue(jobs)
    took = scene.wait_until_done()
    assert scene.runs() == dict.fromkeys(scene.jobs, 1), "a job ran twice, or not at all"
    return {"jobs": len(scene.jobs), "seconds that took": round(took, 1)}


def test_a_failing_task_runs_max_attempts_times_and_publishes_an_event(scene: Scene) -> None:
    die(scene, jobs=2, max_attempts=3)


def die(scene: Scene, *, jobs: int, max_attempts: int) -> dict[str, Any]:
    """Fail every attempt. The jobs become DEAD, and one event is published for each."""
    scene.start_enqueuer()
    scene.start_workers()
    scene.enqueue(jobs, "fail", max_attempts=max_attempts)
    scene.wait_until_done()
    wait_until(scene.is_drained, limit=LIMIT_SECONDS)
    wait_until(lambda: scene.endpoint.depth("taskharbor-dead-events")[0] == jobs, limit=LIMIT_SECONDS)
    dead = scene.driver.inspector.get(scene.jobs).values()
    events = {event["job_id"]: event for event in scene.events()}
    assert {job.status for job in dead} == {Status.DEAD}
    assert scene.runs() == dict.fromkeys(scene.jobs, max_attempts)
    assert events.keys() == {str(each) for each in scene.jobs}
    assert {(event["attempt_count"], event["error"]) for event in events.values()} == {
        (max_attempts, next(iter(dead)).last_error)
    }
    return {"jobs": jobs, "attempts of each": max_attempts, "events": len(events)}


def test_an_outage_of_the_dead_events_queue_only_delays_events(scene: Scene) -> None:
    die_unheard(scene)


def die_unheard(scene: Scene) -> dict[str, Any]:
    """Delete the queue of dead-letter events while a job becomes DEAD."""
    sqs = raw_client(scene.endpoint.url)
    sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName="taskharbor-dead-events")["QueueUrl"])
    sqs.close()
    scene.start_enqueuer()
    scene.start_workers()
    [job_id] = scene.enqueue(1, "fail", max_attempts=1)
    scene.wait_until_done()
    wait_until(scene.is_drained, limit=LIMIT_SECONDS)
    wait_until(lambda: scene.driver.inspector.outbox([job_id])[0].attempts > 0, limit=LIMIT_SECONDS)
    assert scene.driver.inspector.outbox([job_id])[0].published_at is None
    scene.transport.ensure_queues(EVERYTHING)
    took = wait_until(lambda: scene.driver.inspector.outbox([job_id])[0].published_at is not None, limit=LIMIT_SECONDS)
    [event] = scene.events()
    assert event["event_id"] == scene.driver.inspector.outbox([job_id])[0].event.event_id
    return {"seconds until the event came": round(took, 1)}
