"""Several threads receive messages of one queue while there is a backlog and replies are slow."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.enqueuer import DueTaskEnqueuer
from taskharbor.runtime import ThreadRuntime
from taskharbor.testing.simulation.queue_service import QueueService
from taskharbor.worker.message_source import MAX_RECEIVERS, PARALLEL_RECEIVE_SECONDS
from taskharbor.worker.polling_source import FULL_PAUSE
from tests.support.waiting import wait_until
from tests.support.worker_rig import LONG, Outage, enqueue, meddled, running_worker, stored, worker_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.delivery.transport import IncomingMessage
    from taskharbor.worker import Worker

MOMENT = timedelta(milliseconds=10)


@dataclass
class SlowReceives(QueueService):
    """A queue service far away: every receive takes long. It counts the receives of each thread."""

    receivers: Counter[str] = field(default_factory=Counter)

    def receive(self, queue: str, *, most: int, wait: timedelta, visibility: timedelta) -> list[IncomingMessage]:
        found = super().receive(queue, most=most, wait=wait, visibility=visibility)
        threading.Event().wait(4 * PARALLEL_RECEIVE_SECONDS)
        self.receivers[threading.current_thread().name] += 1
        return found

    @property
    def count(self) -> int:
        """How many threads have called receive."""
        return len(self.receivers)


def _sent(count: int, **options: Any) -> tuple[MemoryDriver, SlowReceives, list[JobId]]:
    """Enqueue jobs, and send their messages."""
    driver, service = MemoryDriver(), SlowReceives(time.monotonic)
    return driver, service, _send(driver, service, count, **options)


def _send(driver: MemoryDriver, service: SlowReceives, count: int, **options: Any) -> list[JobId]:
    jobs = [enqueue(driver, "run") for _ in range(count)]
    enqueuer = DueTaskEnqueuer(ThreadRuntime(sync_threads=1), driver, service, queues=["default"], **options)
    while any(stored(driver, job_id).status is Status.PENDING for job_id in jobs):
        enqueuer.tick()
    return jobs


def _has_idle_helpers(worker: Worker) -> bool:
    loops = [*worker.watched.loops.activities.items()]
    return [each.state.pause for name, each in loops if name.startswith("extra-")] == [FULL_PAUSE] * (MAX_RECEIVERS - 1)


def _are_succeeded(driver: MemoryDriver, jobs: Sequence[JobId]) -> bool:
    return all(stored(driver, job_id).status is Status.SUCCEEDED for job_id in jobs)


async def _nothing(_job: Job) -> None: ...


def test_several_threads_receive_a_backlog_and_each_job_runs_once() -> None:
    driver, service, _ = _sent(0)

    with running_worker(driver, {"run": _nothing}, transport=service, receive_wait=MOMENT, concurrency=100) as worker:
        wait_until(lambda: _has_idle_helpers(worker))  # so that they must be woken
        jobs = _send(driver, service, 400)
        wait_until(lambda: _are_succeeded(driver, jobs))

    assert 1 < service.count <= MAX_RECEIVERS
    assert {stored(driver, job_id).attempt_count for job_id in jobs} == {1}


def test_one_thread_receives_single_messages() -> None:
    driver, service, _ = _sent(0)
    enqueuer = DueTaskEnqueuer(ThreadRuntime(sync_threads=1), driver, service, queues=["default"])

    with running_worker(driver, {"run": _nothing}, transport=service, receive_wait=MOMENT):
        for _ in range(10):
            job_id = enqueue(driver, "run")
            enqueuer.tick()
            wait_until(lambda job_id=job_id: _are_succeeded(driver, [job_id]))  # type: ignore[misc]

    assert service.count == 1


def test_one_thread_receives_messages_with_several_jobs() -> None:
    driver, service, jobs = _sent(2000, bundle=10)

    # There are always free slots for a second thread.
    with running_worker(driver, {"run": _nothing}, transport=service, receive_wait=MOMENT, concurrency=2000):
        wait_until(lambda: _are_succeeded(driver, jobs))

    assert service.count == 1


def test_a_worker_drains_what_several_threads_have_received() -> None:
    driver, service, jobs = _sent(300)

    worker_for(driver, {"run": _nothing}, transport=service, receive_wait=MOMENT, concurrency=100).drain(LONG)

    assert _are_succeeded(driver, jobs)
    wait_until(lambda: not service.queues["default"])


def test_a_stopping_worker_waits_for_claims_of_all_its_receivers() -> None:
    driver, service, jobs = _sent(400)
    outage = Outage("claim", commits=True)
    worker = worker_for(
        meddled(driver, outage), {"run": _nothing}, transport=service, receive_wait=MOMENT, concurrency=100
    )
    worker.start()
    wait_until(lambda: service.count > 1 or _are_succeeded(driver, jobs))
    outage.begin()
    wait_until(lambda: bool(outage.refused) or _are_succeeded(driver, jobs))
    outage.end()

    worker.stop(timedelta(0))

    assert {stored(driver, job_id).status for job_id in jobs} <= {Status.SUCCEEDED, Status.ENQUEUED}
