"""Helpers of worker tests: running workers, enqueued jobs, and drivers whose calls a test intercepts."""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from taskharbor.client import Client
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.messages import parse_message
from taskharbor.core.request import JobRequest
from taskharbor.core.results import JobFilter
from taskharbor.core.states import FINAL, WAITING
from taskharbor.enqueuer import DueTaskEnqueuer
from taskharbor.runtime import ThreadRuntime
from taskharbor.testing.simulation.queue_service import QueueService
from taskharbor.worker import Worker
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver

    Handlers = Mapping[str, Callable[..., Any]]

LONG: Final = timedelta(seconds=20)
SHORT: Final = timedelta(seconds=0.4)
"""A lease short enough for tests to wait for, and long enough for a busy machine."""
NOW: Final = timedelta(0)
LIMIT_SECONDS: Final = 20.0  # handlers wait much less


class MessageDelivery:
    """A queue service for the workers of a test, and an enqueuer for each queue that a worker serves."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.service = QueueService(time.monotonic)
        self._enqueuers: dict[str, DueTaskEnqueuer] = {}

    def options(self, queues: Iterable[str]) -> dict[str, Any]:
        for queue in set(queues) - set(self._enqueuers):
            runtime = ThreadRuntime(sync_threads=1)
            enqueuer = DueTaskEnqueuer(
                runtime, self._driver, self.service, queues=[queue], max_idle=timedelta(milliseconds=20)
            )
            enqueuer.start()
            self._enqueuers[queue] = enqueuer
        return {"transport": self.service, "receive_wait": timedelta(milliseconds=50)}

    def wait_until_sent(self) -> None:
        """Wait until all due jobs have a message, so that a draining worker finds them."""
        now = self._driver.inspector.now()
        queues = {view.name for view in self._driver.inspector.queues() if view.paused_at is None}
        page = self._driver.inspector.find(JobFilter(statuses=WAITING), limit=1_000)
        due = {job.id for job in page.jobs if job.scheduled_for <= now and job.queue in queues & {*self._enqueuers}}
        wait_until(lambda: due <= self._named_by_messages())

    def _named_by_messages(self) -> set[JobId]:
        messages = [parse_message(copy.body) for copies in [*self.service.queues.values()] for copy in [*copies]]
        return {named.job_id for message in messages for named in message or ()}

    def close(self) -> None:
        for enqueuer in self._enqueuers.values():
            enqueuer.stop()


_deliveries: list[MessageDelivery] = []


@contextmanager
def with_messages(driver: Driver) -> Iterator[MessageDelivery]:
    """Deliver jobs by messages to all workers created for this store inside the block."""
    with closing(MessageDelivery(driver)) as delivery:
        _deliveries.append(delivery)
        try:
            yield delivery
        finally:
            _deliveries.remove(delivery)


def worker_for(driver: Driver, handlers: Handlers, **options: Any) -> Worker:
    if _deliveries:
        options = {**_deliveries[-1].options(options.get("queues", ["default"])), **options}
    worker = Worker(driver, **{"lease": LONG, "poll": timedelta(milliseconds=50), **options})
    for job_type, handler in handlers.items():
        worker.register(job_type, handler)
    return worker


@contextmanager
def running_worker(driver: Driver, handlers: Handlers, **options: Any) -> Iterator[Worker]:
    """Run a worker inside the block, and stop it without grace afterwards."""
    worker = worker_for(driver, handlers, **options)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(NOW)


def drained(driver: Driver, handlers: Handlers, **options: Any) -> None:
    """Run a worker until no job is due."""
    worker = worker_for(driver, handlers, **options)
    if _deliveries:
        _deliveries[-1].wait_until_sent()
    worker.drain(LONG)


def enqueue(driver: Driver, job_type: str, payload: object = None, **fields: Any) -> JobId:
    return Client(driver).enqueue(JobRequest(type=job_type, payload=payload, **fields)).id


def stored(driver: Driver, job_id: JobId) -> Job:
    return driver.inspector.get([job_id])[job_id]


def ended(driver: Driver, job_id: JobId) -> Job:
    """Return the job once it is final."""
    wait_until(lambda: stored(driver, job_id).status in FINAL)
    return stored(driver, job_id)


class Meddle(Protocol):
    """Intercepts a driver call: gets the verb and the call, and returns what the caller receives."""

    def __call__(self, verb: str, call: Callable[[], Any]) -> Any:
        """Return a result for the caller, with or without making the call."""


class _Meddled:
    def __init__(self, inner: object, meddle: Meddle, prefix: str = "") -> None:
        self._inner, self._meddle, self._prefix = inner, meddle, prefix

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in {"maintenance", "inspector", "control", "attempt_logs"}:
            return _Meddled(found, self._meddle)
        if name == "operations":
            return _Meddled(found, self._meddle, "operations.")  # other parts have verbs of the same names
        if not callable(found) or name == "listen":
            return found
        return lambda *given, **named: self._meddle(self._prefix + name, lambda: found(*given, **named))


def meddled(driver: Driver, meddle: Meddle) -> Driver:
    """Return *driver* with *meddle* intercepting its calls."""
    return cast("Driver", _Meddled(driver, meddle))


class Outage:
    """Makes a store unavailable, or raises *error*, between ``begin`` and ``end``, for these *verbs* or for all."""

    def __init__(self, *verbs: str, commits: bool = False, error: Exception | None = None) -> None:
        self._verbs = verbs
        self._commits = commits
        self._error = error or StoreUnavailable("made unavailable by a test")
        self._changed = threading.Condition()
        self._is_on = False
        self._running = 0
        self.refused: list[str] = []

    def begin(self) -> None:
        """Start the outage and wait for running calls, which could claim what the test enqueues next."""
        with self._changed:
            self._is_on = True
            assert self._changed.wait_for(lambda: not self._running, LIMIT_SECONDS)

    def end(self) -> None:
        with self._changed:
            self._is_on = False

    def __call__(self, verb: str, call: Callable[[], Any]) -> Any:
        with self._changed:
            refuses = self._is_on and (not self._verbs or verb in self._verbs)
            self._running += not refuses
        if not refuses:
            try:
                return call()
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()
        if self._commits:
            call()  # only the reply is lost
        self.refused.append(verb)
        raise self._error


class Hold:
    """Blocks calls of some verbs: each sets ``came`` and continues when ``may_go`` is set."""

    def __init__(self, *verbs: str) -> None:
        self._verbs = verbs
        self.is_on = threading.Event()
        self.came = threading.Event()
        self.may_go = threading.Event()

    def __call__(self, verb: str, call: Callable[[], Any]) -> Any:
        if verb in self._verbs and self.is_on.is_set():
            self.came.set()
            assert self.may_go.wait(LIMIT_SECONDS)
        return call()
