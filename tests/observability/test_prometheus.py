"""The metrics of a process: what its hook counts, how many labels there are, and the text that Prometheus reads."""

from __future__ import annotations

import gc
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from taskharbor import Harbor, MemoryDriver
from taskharbor.core import hooks
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import AttemptOutcome, Claim, Job, Lease, NewJob
from taskharbor.core.results import Enqueued, RefusalReason
from taskharbor.core.states import Status
from taskharbor.health import ServiceHealth
from taskharbor.health.metrics import LoopMetrics
from taskharbor.observability.prometheus import PrometheusHook, hook_among, render
from taskharbor.observability.prometheus.histogram import BatchHistogram
from taskharbor.observability.prometheus.labels import MAX_PAIRS, MAX_QUEUES, MAX_TYPES, OTHER, JobLabels
from taskharbor.store_metrics import StoreGauges
from tests.support.exposition import parse

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parents[2]
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
SECOND: Final = timedelta(seconds=1)


@pytest.fixture
def metrics() -> PrometheusHook:
    return PrometheusHook(CollectorRegistry())


def job(type_name: str = "greet", queue: str = "mail", *, waited: timedelta = SECOND) -> Job:
    return Job(
        id=new_job_id(),
        type=type_name,
        queue=queue,
        priority=0,
        payload=b"null",
        status=Status.PROCESSING,
        scheduled_for=NOW - waited,
        timeout=None,
        created_at=NOW,
        attempt_count=1,
        max_attempts=3,
        processing_started_at=NOW,
    )


def claim(claimed: Job, *, is_reclaim: bool = False) -> Claim:
    return Claim(claimed, lease(claimed), is_reclaim=is_reclaim)


def lease(claimed: Job) -> Lease:
    return Lease(claimed.id, new_token(), NOW)


def enqueued(*pairs: tuple[str, str], existed: bool = False) -> hooks.JobsEnqueued:
    jobs = [
        NewJob(id=new_job_id(), type=type_name, queue=queue, payload=b"", created_at=NOW, max_attempts=1)
        for queue, type_name in pairs
    ]
    return hooks.JobsEnqueued(jobs=jobs, results=[Enqueued(each.id, existed=existed) for each in jobs])


def failed(failure: Failure, status: Status = Status.FAILED) -> hooks.AttemptFailed:
    return hooks.AttemptFailed(
        job=job(), status=status, failure=failure, ended_at=NOW, retry_at=None, run_seconds=0.5, exception=None
    )


def dead(*, queue: str = "mail") -> hooks.JobDead:
    return hooks.JobDead(job_id=new_job_id(), type="greet", queue=queue, life=1, attempt_count=1, reason="")


TIMED_OUT: Final = Failure(type="taskharbor.JobTimedOut")
MAIL: Final = {"queue": "mail", "type": "greet"}


@pytest.mark.parametrize(
    ("events", "name", "labels", "value"),
    [
        ([enqueued(("mail", "greet"), ("mail", "greet"), ("other", "x"))], "jobs_enqueued_total", MAIL, 2),
        ([enqueued(("mail", "greet"), existed=True)], "jobs_enqueued_total", MAIL, None),
        ([hooks.JobsClaimed(queue="mail", claims=[claim(job())])], "schedule_lag_seconds_sum", {"queue": "mail"}, 1),
        ([hooks.JobsClaimed(queue="mail", claims=[claim(job(), is_reclaim=True)])], "schedule_lag_seconds_count",
            {"queue": "mail"}, None),
        ([hooks.ClaimRefused(queue="mail", job_id=new_job_id(), reason=RefusalReason.NOT_DUE)], "claims_refused_total",
            {"reason": "not_due"}, 1),
        ([hooks.JobsSucceeded(jobs=[job(), job()], run_seconds=[0.25, 0.5], ended_at=NOW)], "attempts_total",
            MAIL | {"outcome": "succeeded"}, 2),
        ([hooks.JobsSucceeded(jobs=[job(), job()], run_seconds=[0.25, 0.5], ended_at=NOW)], "job_run_seconds_sum",
            MAIL, 0.75),
        ([hooks.JobsSucceeded(jobs=[job("a"), job()], run_seconds=[0.25, 0.5], ended_at=NOW)], "job_run_seconds_sum",
            MAIL, 0.5),
        ([hooks.JobsSucceeded(jobs=[job("a"), job()], run_seconds=[0.25, 0.5], ended_at=NOW)], "jobs_finished_total",
            {"queue": "mail", "status": "SUCCEEDED"}, 2),
        ([failed(Failure())], "attempts_total", MAIL | {"outcome": "failed"}, 1),
        ([failed(Failure())], "job_run_seconds_count", MAIL, 1),
        ([failed(TIMED_OUT)], "attempts_total", MAIL | {"outcome": "timed_out"}, 1),
        ([failed(Failure(), Status.DEAD), dead()], "jobs_finished_total", {"queue": "mail", "status": "DEAD"}, 1),
        ([hooks.AttemptReturned(job=job(), status=Status.PENDING, outcome=AttemptOutcome.SNOOZED, run_seconds=1.0)],
            "attempts_total", MAIL | {"outcome": "snoozed"}, 1),
        ([hooks.AttemptReturned(job=job(), status=Status.PENDING, outcome=AttemptOutcome.RELEASED, run_seconds=None)],
            "job_run_seconds_count", MAIL, None),
        ([hooks.AttemptLost(job=(lost := job()), lease=lease(lost))], "attempts_total", MAIL | {"outcome": "lost"}, 1),
        ([hooks.AttemptLost(job=(lost := job()), lease=lease(lost))], "leases_lost_total", {}, 1),
        ([hooks.LeasesExpired(job_ids=[new_job_id(), new_job_id()])], "leases_expired_total", {}, 2),
        ([hooks.JobCanceled(job_id=new_job_id(), type="greet", queue="mail", job=job(), run_seconds=1.0)],
            "attempts_total", MAIL | {"outcome": "canceled"}, 1),
        ([hooks.JobCanceled(job_id=new_job_id(), type="greet", queue="mail")], "attempts_total",
            MAIL | {"outcome": "canceled"}, None),
        ([hooks.JobCanceled(job_id=new_job_id(), type="greet", queue="mail")], "jobs_finished_total",
            {"queue": "mail", "status": "CANCELED"}, 1),
        ([hooks.JobsDispatched(queue="mail", count=3)], "dispatched_total", {"queue": "mail"}, 3),
        ([hooks.JobsResent(queue="mail", count=2)], "resent_total", {"queue": "mail"}, 2),
        ([hooks.MessagesReceived(queue="mail", count=10)], "sqs_messages_received_total", {"queue": "mail"}, 10),
        ([hooks.MessagesDeclined(queue="mail", count=1)], "sqs_messages_declined_total", {"queue": "mail"}, 1),
        ([hooks.MessagesDeleted(queue="mail", count=9)], "sqs_messages_deleted_total", {"queue": "mail"}, 9),
        ([hooks.EventsPublished(count=3, failed=2, given_up=1)], "dead_letter_events_total", {"result": "failed"}, 2),
        ([hooks.OutageBegan(service="store", exception=StoreUnavailable("away"))], "service_available",
            {"service": "store"}, 0),
        ([hooks.OutageBegan(service="queue service", exception=StoreUnavailable("away"))], "outages_total",
            {"service": "queue_service"}, 1),
        ([hooks.OutageBegan(service="store", exception=StoreUnavailable("away")),
            hooks.OutageEnded(service="store", duration=SECOND)], "service_available", {"service": "store"}, 1),
        ([hooks.ClockJumped(jump=SECOND)], "clock_jumps_total", {}, 1),
        ([hooks.SlotLost(job=job(), lost=1, total=16)], "slots_lost_total", {}, 1),
    ],
)  # fmt: skip
def test_an_event_is_counted_as_its_metric(
    metrics: PrometheusHook, events: list[hooks.HookEvent], name: str, labels: dict[str, str], value: float | None
) -> None:
    for event in events:
        metrics(event)

    assert metrics.registry.get_sample_value(f"taskharbor_{name}", labels) == value


def test_every_event_is_counted_or_known_to_have_no_metric(metrics: PrometheusHook) -> None:
    uncounted = {hooks.JobsStarted, hooks.MessageRejected}

    assert {*metrics._counters} == {*hooks.HookEvent.__args__} - uncounted  # noqa: SLF001


@pytest.mark.parametrize("result", ["published", "failed", "given_up"])
def test_results_of_publishing_are_counted_from_zero(metrics: PrometheusHook, result: str) -> None:
    """An alert on increase() misses what was counted before the first scrape of a series."""
    assert metrics.registry.get_sample_value("taskharbor_dead_letter_events_total", {"result": result}) == 0


@pytest.mark.parametrize("service", ["store", "queue_service"])
def test_outages_are_counted_from_zero(metrics: PrometheusHook, service: str) -> None:
    assert metrics.registry.get_sample_value("taskharbor_outages_total", {"service": service}) == 0


@pytest.mark.parametrize(
    ("event", "other"), [(hooks.JobsResent, "dispatched_total"), (hooks.JobsDispatched, "resent_total")]
)
def test_messages_sent_and_sent_again_are_counted_from_zero(
    metrics: PrometheusHook, event: type[hooks.JobsResent | hooks.JobsDispatched], other: str
) -> None:
    """An alert divides one by the other, and finds nothing if one of them is missing."""
    metrics(event(queue="mail", count=2))

    assert metrics.registry.get_sample_value(f"taskharbor_{other}", {"queue": "mail"}) == 0


def test_a_value_is_counted_in_the_buckets_from_its_bound_on(metrics: PrometheusHook) -> None:
    seconds = [0.05, 0.050001, 0.0, 4_000.0, 0.001]
    random.Random(1).shuffle(seconds)
    for batch in (seconds[:1], seconds[1:]):
        metrics(hooks.JobsSucceeded(jobs=[job() for _ in batch], run_seconds=batch, ended_at=NOW))

    def below(bound: str) -> float | None:
        return metrics.registry.get_sample_value("taskharbor_job_run_seconds_bucket", MAIL | {"le": bound})

    assert [below(bound) for bound in ("0.001", "0.01", "0.05", "0.1", "3600.0", "+Inf")] == [2, 2, 3, 4, 4, 5]


@pytest.mark.parametrize("values", [[0.2], [0.1, 0.1], [0.1, 0.2], [0.3, 9.0, 0.1], [7.0, 7.5]])
def test_values_of_one_bucket_are_counted_as_those_of_several(values: list[float]) -> None:
    registry = CollectorRegistry()
    histogram = BatchHistogram("run", "How long.", (), bounds=(0.1, 0.2, 1.0), registry=registry)

    histogram.observe((), values)

    for bound in (0.1, 0.2, 1.0):
        assert registry.get_sample_value("run_bucket", {"le": str(bound)}) == sum(each <= bound for each in values)
    assert registry.get_sample_value("run_count") == len(values)
    assert registry.get_sample_value("run_sum") == sum(values)


def test_a_worker_in_a_process_is_counted_from_enqueue_to_end(metrics: PrometheusHook) -> None:
    harbor = Harbor("memory://", hooks=[metrics])
    runs = iter([True, False])

    @harbor.task(max_attempts=1)
    def greet() -> None:
        assert next(runs)

    greet.enqueue()
    greet.enqueue()
    worker = harbor.worker(concurrency=3)
    metrics.watch(worker)
    worker.drain()

    lines = [line.rpartition(" ") for line in _text(metrics).splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, _, value in lines}
    assert found['taskharbor_jobs_enqueued_total{queue="default",type="greet"}'] == 2
    assert found['taskharbor_attempts_total{outcome="succeeded",queue="default",type="greet"}'] == 1
    assert found['taskharbor_attempts_total{outcome="failed",queue="default",type="greet"}'] == 1
    assert found['taskharbor_jobs_finished_total{queue="default",status="DEAD"}'] == 1
    assert found['taskharbor_job_run_seconds_count{queue="default",type="greet"}'] == 2
    assert found['taskharbor_schedule_lag_seconds_count{queue="default"}'] == 2
    assert found['taskharbor_worker_slots{state="total"}'] == 3
    assert found['taskharbor_worker_slots{state="busy"}'] == 0
    assert found['taskharbor_service_available{service="store"}'] == 1


def _text(metrics: PrometheusHook) -> str:
    return render(metrics.registry)[0].decode()


def flood(metrics: PrometheusHook, types: range, queue: str = "queue-0") -> None:
    """Count a success of each type, in batches of a hundred types."""
    for start in range(0, len(types), 100):
        names = [f"type-{number}" for number in types[start : start + 100]]
        jobs = [job(name, queue) for name in names]
        metrics(enqueued(*((queue, name) for name in names)))
        metrics(hooks.JobsClaimed(queue=queue, claims=[claim(each) for each in jobs]))
        metrics(hooks.JobsSucceeded(jobs=jobs, run_seconds=[0.1] * len(jobs), ended_at=NOW))
        metrics(dead(queue=queue))


def test_ten_thousand_types_keep_labels_bounded_and_memory_flat(metrics: PrometheusHook) -> None:
    flood(metrics, range(1_000))
    size, objects = len(_text(metrics)), _objects()
    flood(metrics, range(1_000, 10_000))

    types = {*re.findall(r'type="([^"]+)"', _text(metrics))}
    assert (len(types), OTHER in types) == (MAX_TYPES + 1, True)
    assert len(_text(metrics)) < size * 1.1
    assert _objects() - objects < 500  # a counter of each type would be tens of thousands
    total = metrics.registry.get_sample_value("taskharbor_jobs_enqueued_total", {"queue": "queue-0", "type": OTHER})
    assert total == 10_000 - MAX_TYPES


def _objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def test_queues_and_their_combinations_with_types_are_bounded(metrics: PrometheusHook) -> None:
    for number in range(700):
        flood(metrics, range(number, number + 2), queue=f"queue-{number}")

    text = _text(metrics)
    pairs = {*re.findall(r'enqueued_total\{queue="([^"]+)",type="([^"]+)"\}', text)}
    assert {*re.findall(r'queue="([^"]+)"', text)} == {f"queue-{n}" for n in range(MAX_QUEUES)} | {OTHER}
    assert len(pairs) <= MAX_PAIRS + MAX_QUEUES + 1


def test_combinations_beyond_the_limit_are_counted_by_queue() -> None:
    labels = JobLabels()

    pairs = {labels.pair(f"queue-{queue}", f"type-{number}") for queue in range(200) for number in range(200)}

    assert len(pairs) == MAX_PAIRS + 200 - MAX_PAIRS // 200
    assert labels.pair("queue-0", "type-0") == ("queue-0", "type-0")
    assert labels.pair("queue-199", "type-0") == ("queue-199", OTHER)


def test_no_label_holds_an_id(metrics: PrometheusHook) -> None:
    flood(metrics, range(3))

    assert re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", _text(metrics)) is None


ODD: Final = 'a "quoted" \\ name\nin two lines'


def test_the_text_is_read_by_two_independent_parsers(metrics: PrometheusHook) -> None:
    flood(metrics, range(5))
    metrics(enqueued((ODD, ODD)))
    StoreGauges(lambda: MemoryDriver().inspector, metrics.registry)

    body, content_type = render(metrics.registry)
    ours = parse(body.decode())
    theirs = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }

    assert content_type.startswith("text/plain; version=")
    unescaped = {
        (name, frozenset((key, _unescaped(value)) for key, value in labels)): sample
        for metric in ours.values()
        for (name, labels), sample in metric.samples.items()
    }
    assert unescaped == theirs
    assert ("taskharbor_jobs_enqueued_total", frozenset({("queue", ODD), ("type", ODD)})) in unescaped
    assert not [metric.name for metric in ours.values() if not metric.help]


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)


@pytest.mark.parametrize(
    "text",
    [
        "a 1",
        "a{b=1} 1\n",
        'a{b="1",b="2"} 1\n',
        "a 1\na 1\n",
        "a 1\nb 1\na 2\n",
        "# TYPE a counter\n# TYPE a gauge\n",
        '# TYPE a histogram\na_bucket{le="1"} 1\na_count 1\na_sum 1\n',
        '# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_count 1\na_sum 1\n',
        "# TYPE a wrong\n",
        "a one\n",
    ],
)
def test_the_strict_parser_rejects_text_that_breaks_the_format(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_the_page_of_metrics_lists_exactly_the_registered_ones(metrics: PrometheusHook) -> None:
    metrics.watch(Harbor("memory://").worker())
    StoreGauges(lambda: MemoryDriver().inspector, metrics.registry)
    LoopMetrics(ServiceHealth(), metrics.registry)
    described = [
        (family, _labels_of(collector, family))
        for collector in metrics.registry._collector_to_names  # noqa: SLF001  a registry shows samples only
        for family in cast("Any", collector).describe()
    ]
    registered = {
        (family.name + ("_total" if family.type == "counter" else ""), family.type, labels, family.documentation)
        for family, labels in described
    }

    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(taskharbor_\w+)` \| (\w+) \| (.*?) ?\| (.*?) \|$", page, re.MULTILINE)

    assert {*rows} == registered


def _labels_of(collector: Any, family: Any) -> str:
    names = getattr(collector, "_labelnames", None)
    return ", ".join(f"`{name}`" for name in (family._labelnames if names is None else names))  # noqa: SLF001  as above


def test_a_second_hook_of_a_process_is_found_instead_of_made(metrics: PrometheusHook) -> None:
    other: Callable[[Any], None] = print

    assert hook_among([other, metrics]) is metrics
    assert hook_among([other]) is None
