"""The hook that counts the events of a process, and the text of its metrics."""

from __future__ import annotations

import collections
import platform
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from taskharbor._version import __version__
from taskharbor.core import hooks
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.states import Status
from taskharbor.installation import install_command
from taskharbor.observability.prometheus.labels import JobLabels

try:
    from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, Counter, Gauge, generate_latest

    from taskharbor.observability.prometheus.histogram import BatchHistogram
except ModuleNotFoundError as error:
    message = f"metrics need prometheus_client; install it with: {install_command('prometheus')}"
    raise ModuleNotFoundError(message, name=error.name) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client import CollectorRegistry

    from taskharbor.core.hooks import Hook, HookEvent
    from taskharbor.core.model import Job

_QUEUE: Final = attrgetter("queue")  # in half the time of an expression
_TYPE: Final = attrgetter("type")
RUN_BOUNDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1_800.0, 3_600.0)
LAG_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0)


def render(registry: CollectorRegistry) -> tuple[bytes, str]:
    """Return the metrics of *registry* in the text format of Prometheus, and the content type of that."""
    return generate_latest(registry), CONTENT_TYPE_LATEST


def hook_among(hooks: Iterable[Hook]) -> PrometheusHook | None:
    """Return the first of *hooks* that counts for Prometheus, or None."""
    return next((hook for hook in hooks if isinstance(hook, PrometheusHook)), None)


class SlotHolder(Protocol):
    """What a `taskharbor.Worker` says of its slots."""

    @property
    def concurrency(self) -> int: ...
    @property
    def running_jobs(self) -> int: ...
    @property
    def lost_slots(self) -> int: ...


class PrometheusHook:
    """Counts hook events as metrics of *registry*. A registry can have one such hook.

    The labels are queues, types and fixed words, never ids. The first 200 queues and the first 200 types that a process
    sees are labels, in up to 1,000 combinations; all others are ``other``.

    >>> from prometheus_client import CollectorRegistry
    >>> from taskharbor import Harbor
    >>> metrics = PrometheusHook(CollectorRegistry())
    >>> harbor = Harbor("memory://", hooks=[metrics])
    >>> _ = harbor.task(type="greet")(lambda: None).enqueue()
    >>> harbor.worker().drain()
    >>> metrics.registry.get_sample_value("taskharbor_jobs_finished_total", {"queue": "default", "status": "SUCCEEDED"})
    1.0
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.registry: Final = registry
        self._labels = JobLabels()
        self._workers: list[SlotHolder] = []
        self._make_job_metrics()
        self._make_delivery_metrics()
        self._make_process_metrics()
        self._counters: dict[type[HookEvent], Callable[[Any], None]] = {
            hooks.JobsEnqueued: self._enqueued,
            hooks.JobsClaimed: self._claimed,
            hooks.ClaimRefused: lambda event: self._refused.labels(event.reason.replace(" ", "_")).inc(),
            hooks.JobsSucceeded: self._succeeded,
            hooks.AttemptFailed: self._failed,
            hooks.AttemptReturned: lambda event: self._ended(event.job, event.outcome, event.run_seconds),
            hooks.AttemptLost: self._lost,
            hooks.LeasesExpired: lambda event: self._leases_expired.inc(len(event.job_ids)),
            hooks.JobCanceled: self._canceled,
            hooks.JobDead: lambda event: self._finish(event.queue, Status.DEAD, 1),
            hooks.JobsDispatched: lambda event: self._sent(self._dispatched, event),
            hooks.JobsResent: lambda event: self._sent(self._resent, event),
            hooks.MessagesReceived: lambda event: self._count(self._messages_received, event),
            hooks.MessagesDeclined: lambda event: self._count(self._messages_declined, event),
            hooks.MessagesDeleted: lambda event: self._count(self._messages_deleted, event),
            hooks.EventsPublished: self._published,
            hooks.OutageBegan: self._outage_began,
            hooks.OutageEnded: lambda event: self._available.labels(event.service.replace(" ", "_")).set(1),
            hooks.ClockJumped: lambda _event: self._clock_jumps.inc(),
            hooks.SlotLost: lambda _event: self._slots_lost.inc(),
        }

    ignored_events: Final = frozenset({hooks.JobsStarted})

    def __call__(self, event: HookEvent) -> None:
        count = self._counters.get(type(event))
        if count is not None:
            count(event)

    def watch(self, worker: SlotHolder) -> None:
        """Export how many slots *worker* has, and how many of them are busy or lost."""
        if not self._workers:
            slots = self._gauge("worker_slots", "Slots of the workers of this process, by state.", "state")
            slots.labels("total").set_function(lambda: sum(each.concurrency for each in self._workers))
            slots.labels("busy").set_function(lambda: sum(each.running_jobs for each in self._workers))
            slots.labels("lost").set_function(lambda: sum(each.lost_slots for each in self._workers))
        self._workers.append(worker)
        self.note_store(is_available=True)

    def note_store(self, *, is_available: bool) -> None:
        """Export whether the store is available, until an event says otherwise.

        Only for a process with a service, whose outages are events: in others, the metric would stay as it is.
        """
        self._available.labels("store").set(is_available)

    def _make_job_metrics(self) -> None:
        counter = self._counter
        self._jobs_enqueued = counter("jobs_enqueued", "Jobs stored by this process.", "queue", "type")
        self._attempts = counter("attempts", "Attempts that ended in this process.", "queue", "type", "outcome")
        self._finished = counter("jobs_finished", "Jobs that this process brought to an end.", "queue", "status")
        self._refused = counter("claims_refused", "Claims of jobs named by messages that were refused.", "reason")
        self._leases_lost = counter("leases_lost", "Leases that this process lost while it ran the job.")
        self._leases_expired = counter("leases_expired", "Expired leases of other workers that this process ended.")
        self._slots_lost = counter("slots_lost", "Slots lost to sync handlers that did not return after a timeout.")
        self._run = BatchHistogram(
            "taskharbor_job_run_seconds",
            "How long handlers ran.",
            ("queue", "type"),
            bounds=RUN_BOUNDS,
            registry=self.registry,
        )
        self._lag = BatchHistogram(
            "taskharbor_schedule_lag_seconds",
            "How long jobs were due before a worker claimed them, by the store's clock.",
            ("queue",),
            bounds=LAG_BOUNDS,
            registry=self.registry,
        )

    def _make_delivery_metrics(self) -> None:
        counter = self._counter
        self._dispatched = counter("dispatched", "Due jobs whose ids were sent for the first time.", "queue")
        self._resent = counter("resent", "Unclaimed jobs whose ids were sent again.", "queue")
        self._messages_received = counter("sqs_messages_received", "Messages received.", "queue")
        self._messages_declined = counter("sqs_messages_declined", "Jobs of messages that were declined.", "queue")
        self._messages_deleted = counter("sqs_messages_deleted", "Messages deleted.", "queue")
        self._dead_events = counter("dead_letter_events", "Tries to publish dead-letter events.", "result")
        for result in ("published", "failed", "given_up"):
            self._dead_events.labels(result)  # from zero: increase() in an alert misses a series that begins above it

    def _make_process_metrics(self) -> None:
        self._available = self._gauge("service_available", "Whether calls of a service succeed: 1 or 0.", "service")
        self._outages = self._counter("outages", "Outages of a service that began.", "service")
        for service in ("store", "queue_service"):
            self._outages.labels(service)  # from zero, as the results of dead-letter events
        self._clock_jumps = self._counter("clock_jumps", "Jumps of the store's clock that this process found.")
        build = self._gauge("build_info", "The versions of TaskHarbor and Python; always 1.", "version", "python")
        build.labels(__version__, platform.python_version()).set(1)

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"taskharbor_{name}", documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"taskharbor_{name}", documentation, labels, registry=self.registry)

    def _count(self, counter: Counter, event: Any) -> None:
        counter.labels(self._labels.queue(event.queue)).inc(event.count)

    def _sent(self, counter: Counter, event: Any) -> None:
        queue = self._labels.queue(event.queue)
        for each in (self._dispatched, self._resent):
            each.labels(queue)  # both from zero: an alert divides one by the other
        counter.labels(queue).inc(event.count)

    def _enqueued(self, event: hooks.JobsEnqueued) -> None:
        accepted = zip(event.jobs, event.results, strict=True)
        pairs = collections.Counter((job.queue, job.type) for job, result in accepted if not result.existed)
        for pair, count in pairs.items():
            self._jobs_enqueued.labels(*self._labels.pair(*pair)).inc(count)

    def _claimed(self, event: hooks.JobsClaimed) -> None:
        # A job with an expired lease was not waiting all the time: its first worker ran it.
        started_at = event.claims[0].job.processing_started_at  # one statement has claimed them all
        if started_at is None:
            return
        lags = [(started_at - each.job.scheduled_for).total_seconds() for each in event.claims if not each.is_reclaim]
        if lags:
            self._lag.observe((self._labels.queue(event.queue),), lags)

    def _succeeded(self, event: hooks.JobsSucceeded) -> None:
        queues, types = {*map(_QUEUE, event.jobs)}, {*map(_TYPE, event.jobs)}
        if len(queues) == len(types) == 1:  # most batches: nothing must be grouped
            self._count_successes(queues.pop(), types.pop(), event.run_seconds)
            return
        by_pair: dict[tuple[str, str], list[float]] = {}
        for job, seconds in zip(event.jobs, event.run_seconds, strict=True):
            by_pair.setdefault((job.queue, job.type), []).append(seconds)
        for (queue, type_name), run_seconds in by_pair.items():
            self._count_successes(queue, type_name, run_seconds)

    def _count_successes(self, queue: str, type_name: str, run_seconds: Sequence[float]) -> None:
        pair = self._labels.pair(queue, type_name)
        self._attempts.labels(*pair, "succeeded").inc(len(run_seconds))
        self._run.observe(pair, run_seconds)
        self._finish(queue, Status.SUCCEEDED, len(run_seconds))

    def _failed(self, event: hooks.AttemptFailed) -> None:
        outcome = AttemptOutcome.TIMED_OUT if event.failure.is_timeout else AttemptOutcome.FAILED
        self._ended(event.job, outcome, event.run_seconds)

    def _lost(self, event: hooks.AttemptLost) -> None:
        self._leases_lost.inc()
        self._ended(event.job, AttemptOutcome.LOST, None)

    def _canceled(self, event: hooks.JobCanceled) -> None:
        self._finish(event.queue, Status.CANCELED, 1)
        if event.job is not None:
            self._ended(event.job, AttemptOutcome.CANCELED, event.run_seconds)

    def _ended(self, job: Job, outcome: AttemptOutcome, run_seconds: float | None) -> None:
        pair = self._labels.pair(job.queue, job.type)
        self._attempts.labels(*pair, outcome.lower()).inc()
        if run_seconds is not None:
            self._run.observe(pair, [run_seconds])

    def _finish(self, queue: str, status: Status, count: int) -> None:
        self._finished.labels(self._labels.queue(queue), status).inc(count)

    def _published(self, event: hooks.EventsPublished) -> None:
        for result, count in (("published", event.count), ("failed", event.failed), ("given_up", event.given_up)):
            self._dead_events.labels(result).inc(count)

    def _outage_began(self, event: hooks.OutageBegan) -> None:
        service = event.service.replace(" ", "_")
        self._outages.labels(service).inc()
        self._available.labels(service).set(0)
