"""A store, a queue service, enqueuers and workers in one thread and virtual time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.client import Client
from taskharbor.core.messages import NamedJob, encode_message
from taskharbor.core.request import JobRequest
from taskharbor.delivery.transport import OutgoingMessage
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.enqueuer import DueTaskEnqueuer
from taskharbor.testing.simulation.queue_service import QueueService
from taskharbor.testing.simulation.run import SimulatedClock
from taskharbor.testing.simulation.runtime import SimulatedRuntime
from taskharbor.testing.simulation.world import Process, World
from taskharbor.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver

LEASE: Final = timedelta(seconds=5)
VISIBILITY: Final = timedelta(seconds=6)
LOCK: Final = timedelta(seconds=15)
FIRST: Final = timedelta(seconds=60)
CAP: Final = timedelta(seconds=150)
ROUND: Final = 5.0


class DeliveryRig:
    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.driver = MemoryDriver(clock=SimulatedClock(self.world))
        self.service = QueueService(lambda: self.world.now)
        self.failed: list[BaseException] = []

    def runtime(self, name: str) -> SimulatedRuntime:
        return SimulatedRuntime(Process(self.world, name), failed=lambda _part, error: self.failed.append(error))

    def enqueuer(self, driver: Driver | None = None, **options: Any) -> DueTaskEnqueuer:
        given = {"queues": ["default"], "lock": LOCK, "resend_after": FIRST, "max_resend": CAP, **options}
        return DueTaskEnqueuer(self.runtime("e"), driver or self.driver, self.service, **given)

    def worker(
        self, handlers: Mapping[str, Callable[..., Any]], driver: Driver | None = None, **options: Any
    ) -> Worker:
        given = {"lease": LEASE, "visibility": VISIBILITY, "overdue_after": FIRST, "name": "w", **options}
        runtime = self.runtime("w")
        worker = Worker(driver or self.driver, transport=self.service, runtime=runtime, **given)
        for job_type, handler in handlers.items():
            worker.register(job_type, handler)
        worker.start()
        return worker

    def enqueue(self, **fields: Any) -> JobId:
        client = Client(self.driver, clock=SimulatedClock(self.world), ids=self.world.job_id)
        return client.enqueue(JobRequest(**{"type": "run", **fields})).id

    def job(self, job_id: JobId) -> Job:
        return self.driver.inspector.get([job_id])[job_id]

    def send_message(self, job_id: JobId, *, seq: int | None = None, queue: str = "default") -> None:
        """Send a message for a job without dispatching the job."""
        named = NamedJob(job_id, self.job(job_id).sends if seq is None else seq)
        self.send_text(encode_message([named]), queue=queue)

    def send_text(self, text: str, *, queue: str = "default") -> None:
        self.service.send(queue, [OutgoingMessage(text)])

    def run(self, seconds: float = ROUND) -> None:
        self.world.run(seconds)

    def left(self, queue: str = "default") -> int:
        """Return the number of messages in the queue, visible or not."""
        return len(self.service.queues.get(queue, []))
