"""Counts by queue, and statistics by minute: they equal what a scan of all jobs finds."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from itertools import cycle
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.core.errors import InvalidRequest
from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_token
from taskharbor.core.job_batch import JobBatch
from taskharbor.core.model import AttemptOutcome, Claim
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import JobFilter, Sent, Settlement
from taskharbor.core.states import Status
from taskharbor.core.statistics import (
    BUCKETS,
    COARSE_STEP,
    FINE_FOR,
    GROUPS,
    HOUR,
    MAX_POINTS,
    MINUTE,
    SPANS,
    STEPS,
    AppVersion,
    DeadHour,
    GroupBy,
    Metric,
    SeriesQuery,
    StatisticTally,
    begin_of,
)
from taskharbor.testing.conformance.dead_groups import groups_of, kill
from taskharbor.testing.conformance.subject import BOOM, LEASE, RESEND, TEN_YEARS, TICK, Subject, new_job

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary
    from taskharbor.core.statistics import SeriesPoint

_QUEUES: Final = ("default", "mail", "images")
_LIVING: Final = frozenset(status for status in Status if not status.is_final)
_OPERATIONS: Final = 60


@pytest.mark.parametrize("seed", range(3))
def test_counts_equal_a_full_scan_after_any_operations(subject: Subject, seed: int) -> None:
    day = RandomDay(subject, seed)
    for number in range(_OPERATIONS):
        day.step()
        if number % 5 == 0:
            assert _counted(subject) == _scanned(subject)

    assert _counted(subject) == _scanned(subject)


@pytest.mark.parametrize("seed", range(2))
def test_depths_equal_a_full_scan_at_each_roll_up(subject: Subject, seed: int) -> None:
    day = RandomDay(subject, seed)
    for _ in range(_OPERATIONS // 2):
        day.step()
        subject.driver.maintenance.roll_up(keep=TEN_YEARS)
        now, minute = subject.clock.now(), begin_of(subject.clock.now(), MINUTE)
        jobs = [job for job in _jobs(subject) if job.status in _LIVING]
        running = Counter(job.queue for job in jobs if job.status is Status.PROCESSING)
        waiting = Counter(job.queue for job in jobs if job.status is not Status.PROCESSING)
        ages = {
            queue: max((now - job.scheduled_for).total_seconds() for job in jobs if _is_due(job, queue, now))
            for queue in _QUEUES
            if any(_is_due(job, queue, now) for job in jobs)
        }

        assert _last(subject, Metric.RUNNING, minute) == +running
        assert _last(subject, Metric.WAITING, minute) == +waiting
        assert _last(subject, Metric.OLDEST_AGE, minute) == {queue: age for queue, age in ages.items() if age}


@pytest.mark.parametrize("seed", range(2))
def test_arrivals_less_ends_are_the_living_jobs(subject: Subject, seed: int) -> None:
    day = RandomDay(subject, seed)
    for _ in range(_OPERATIONS):
        day.step()
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    arrived, ended = _summed(subject, Metric.ARRIVED), _summed(subject, Metric.ENDED)
    living = Counter(job.queue for job in _jobs(subject) if job.status in _LIVING)

    assert {queue: arrived[queue] - ended[queue] for queue in _QUEUES} == {queue: living[queue] for queue in _QUEUES}
    assert arrived == +day.arrived


def test_a_requeued_job_arrives_again(subject: Subject) -> None:
    requeued = subject.insert()
    subject.driver.cancel([requeued])
    subject.requeue(requeued)
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    assert _summed(subject, Metric.ARRIVED) == {"default": 2}


def test_ended_jobs_are_counted_by_minute_queue_and_status(subject: Subject) -> None:
    start = begin_of(subject.clock.now(), MINUTE)
    _settle_one(subject, Outcome.ack())
    _settle_one(subject, Outcome.ack(), queue="mail")
    subject.advance(MINUTE)
    _settle_one(subject, Outcome.fail("hopeless", failure=BOOM))
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    def read(by: GroupBy, **narrow: str) -> dict[tuple[datetime, str], float]:
        return {(p.at, p.group): p.value for p in _series(subject, Metric.ENDED, start, by=by, **narrow)}

    assert read(GroupBy.NONE) == {(start, ""): 2, (start + MINUTE, ""): 1}
    assert read(GroupBy.STATUS) == {(start, "SUCCEEDED"): 2, (start + MINUTE, "DEAD"): 1}
    assert read(GroupBy.QUEUE, queue="mail") == {(start, "mail"): 1}


def test_lost_attempts_are_counted_by_type(subject: Subject) -> None:
    start = begin_of(subject.clock.now(), MINUTE)
    for _ in range(2):
        subject.insert(type="long")
    subject.reserve(limit=2)
    subject.advance(LEASE)
    subject.reserve(limit=2)
    subject.advance(LEASE)
    subject.driver.maintenance.expire(limit=10)
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    by_type = _series(subject, Metric.ATTEMPTS, start, by=GroupBy.TYPE, step=HOUR)
    by_outcome = _series(subject, Metric.ATTEMPTS, start, by=GroupBy.STATUS, step=HOUR)

    assert [(point.group, point.value) for point in by_type] == [("long", 4)]
    assert [(point.group, point.value) for point in by_outcome] == [(AttemptOutcome.LOST, 4)]


@pytest.mark.parametrize("seed", range(2))
def test_series_equal_the_sums_of_what_was_recorded(subject: Subject, seed: int) -> None:
    start = begin_of(subject.clock.now(), HOUR)
    tallies = _tallies(random.Random(seed), start)  # noqa: S311  no secret
    for batch in (tallies[::2], tallies[1::2]):
        subject.driver.maintenance.record_statistics(batch)
        subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    for metric in (Metric.ATTEMPTS, *sorted(SPANS)):
        for by in GROUPS[metric]:
            for step in STEPS:
                for queue, type in ((None, None), ("mail", None), (None, "send")):
                    points = _series(subject, metric, start, by=by, step=step, queue=queue, type=type)
                    expected = [t for t in tallies if t.metric is metric and queue in {None, t.queue}]
                    assert _as_counts(points) == _grouped(
                        [t for t in expected if type in {None, t.type}], by=by, step=step
                    )


def test_a_series_begins_with_a_whole_step_and_ends_before_until(subject: Subject) -> None:
    start = begin_of(subject.clock.now(), COARSE_STEP)
    minutes = [start - MINUTE, start, start + 7 * MINUTE, start + COARSE_STEP]
    tallies = [StatisticTally(minute, Metric.ATTEMPTS, "q", "t", "FAILED", 1) for minute in minutes]
    subject.driver.maintenance.record_statistics(tallies)
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    points = subject.driver.inspector.series(
        SeriesQuery(
            metric=Metric.ATTEMPTS, since=start + 5 * MINUTE, until=start + COARSE_STEP, step=COARSE_STEP, queue="q"
        )
    )

    assert [(point.at, point.value) for point in points] == [(start, 2)]


def test_counts_by_minute_are_kept_for_hours_and_others_for_longer(subject: Subject) -> None:
    start = begin_of(subject.clock.now(), COARSE_STEP)
    tallies = [StatisticTally(start + n * MINUTE, Metric.RUN, "q", "t", "05", 2) for n in range(31)]
    subject.driver.maintenance.record_statistics(tallies)
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)
    subject.advance(FINE_FOR + start + 16 * MINUTE - subject.clock.now())
    subject.driver.maintenance.record_statistics(tallies[:1])  # late
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    minutes, quarters = (_series(subject, Metric.RUN, start, step=step) for step in (MINUTE, COARSE_STEP))

    assert [(point.at, point.value) for point in minutes] == [(start + n * MINUTE, 2) for n in range(16, 31)]
    assert [point.value for point in quarters] == [32, 30, 2]


def test_of_old_depths_each_fifteenth_minute_is_kept(subject: Subject) -> None:
    start = begin_of(subject.clock.now(), HOUR) + HOUR
    subject.advance(start - subject.clock.now())
    subject.insert(scheduled_for=start + TEN_YEARS)
    for _ in range(20):
        subject.driver.maintenance.roll_up(keep=TEN_YEARS)
        subject.advance(MINUTE)
    subject.advance(FINE_FOR)
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    points = _series(subject, Metric.WAITING, start)
    query = SeriesQuery(metric=Metric.WAITING, since=start, until=start + COARSE_STEP)

    assert [point.at for point in points] == [start, start + COARSE_STEP, begin_of(subject.clock.now(), MINUTE)]
    assert [point.at for point in subject.driver.inspector.series(query)] == [start]


def test_statistics_older_than_the_retention_are_removed(subject: Subject) -> None:
    kill(subject)
    start = begin_of(subject.clock.now(), HOUR)
    subject.driver.maintenance.record_statistics([StatisticTally(start, Metric.RUN, "q", "t", "05", 2)], version="4f2c")
    [group] = groups_of(subject)
    subject.advance(HOUR + TICK)
    subject.driver.maintenance.roll_up(keep=HOUR)

    inspector = subject.driver.inspector
    assert [_series(subject, metric, start - HOUR) for metric in (Metric.RUN, Metric.ENDED, Metric.WAITING)] == [[]] * 3
    assert inspector.dead_hours([group], since=start - HOUR) == []
    assert inspector.versions(limit=10) == []


def test_a_series_with_too_many_points_is_refused(subject: Subject) -> None:
    start = begin_of(subject.clock.now(), MINUTE)
    minutes = [start + n * MINUTE for n in range(3)]
    queues = [f"q{n:04}" for n in range(MAX_POINTS // 2)]
    tallies = [StatisticTally(m, Metric.ATTEMPTS, queue, "t", "FAILED", 1) for m in minutes for queue in queues]
    subject.driver.maintenance.record_statistics(tallies)
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    two = subject.driver.inspector.series(
        SeriesQuery(metric=Metric.ATTEMPTS, since=start, until=minutes[2], by=GroupBy.QUEUE)
    )
    with pytest.raises(InvalidRequest, match="2,000 points"):
        _series(subject, Metric.ATTEMPTS, start, by=GroupBy.QUEUE)
    with pytest.raises(InvalidRequest, match="2,000 points"):
        _series(subject, Metric.ATTEMPTS, start - (MAX_POINTS + 1) * MINUTE)

    assert len(two) == MAX_POINTS


def test_a_series_that_sums_up_too_many_rows_is_refused(subject: Subject) -> None:
    start = begin_of(subject.clock.now(), HOUR)
    tallies = [StatisticTally(start, Metric.RUN, "q", f"t{n}", "03", 1) for n in range(11)]
    subject.driver.maintenance.record_statistics(tallies)
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    [point] = _series(subject, Metric.RUN, start, max_rows=11)

    assert point.value == len(tallies)
    for step in STEPS:
        with pytest.raises(InvalidRequest, match="more than 10 rows"):
            _series(subject, Metric.RUN, start, step=step, max_rows=10)


def test_deaths_are_counted_by_hour_and_group(subject: Subject) -> None:
    first = begin_of(subject.clock.now(), HOUR)
    requeued = kill(subject)
    kill(subject)
    kill(subject, Failure(type="OSError", message="no route", fingerprint="cafe"))
    kill(subject, type="other")
    subject.advance(first + HOUR - subject.clock.now())
    kill(subject)
    subject.requeue(requeued, delay=timedelta(days=1))
    groups = [group for group in groups_of(subject) if (group.type, group.fingerprint) == ("greet", BOOM.fingerprint)]

    hours = subject.driver.inspector.dead_hours(groups, since=first)
    last = subject.driver.inspector.dead_hours(groups, since=first + TICK)

    boom = ("default", "greet", BOOM.fingerprint)
    assert hours == [DeadHour(*boom, first, 2), DeadHour(*boom, first + HOUR, 1)]
    assert last == hours[1:]


def test_versions_have_the_times_of_their_first_and_last_heartbeat(subject: Subject) -> None:
    first = subject.clock.now()
    subject.driver.maintenance.record_statistics([], version="4f2c")
    subject.advance(timedelta(minutes=2))
    second = subject.clock.now()
    subject.driver.maintenance.record_statistics([], version="77aa")
    subject.driver.maintenance.record_statistics([], version="4f2c")
    subject.driver.maintenance.record_statistics([])

    assert subject.driver.inspector.versions(limit=10) == [
        AppVersion("77aa", second, second),
        AppVersion("4f2c", first, second),
    ]
    assert [each.version for each in subject.driver.inspector.versions(limit=1)] == ["77aa"]


class RandomDay:
    """Calls of a driver in a random but repeatable order. It counts the jobs that arrive."""

    def __init__(self, subject: Subject, seed: int) -> None:
        self._subject, self._driver = subject, subject.driver
        self._random = random.Random(seed)  # noqa: S311  no secret
        self._is_batch = cycle((True, False))
        self._held: list[Claim] = []
        self.arrived: Counter[str] = Counter()

    def step(self) -> None:
        queue = self._random.choice(_QUEUES)
        operation = self._random.choice(
            [self._insert, self._insert, self._reserve, self._reserve, self._settle, self._settle, self._dispatch,
             self._cancel, self._requeue, self._lose, self._remove, self._roll_up]
        )  # fmt: skip
        operation(queue)
        self._subject.advance(timedelta(seconds=self._random.choice([0, 1, 20])))

    def _insert(self, queue: str) -> None:
        count = self._random.choice([1, 1, 3, 250])  # one statement each, or a COPY
        key = self._random.choice([None, None, "same", "other"])
        first = [new_job(queue=queue, idempotency_key=key, digest=b"same")]
        listed = first + [new_job(queue=queue) for _ in range(count - 1)]
        batch = JobBatch(first[0], [job.id for job in listed], [job.payload for job in listed])
        jobs = batch if key is None and next(self._is_batch) else listed
        if self._random.random() < 0.2:
            with self._subject.transaction() as insert:
                answers = insert(jobs)
        else:
            answers = self._driver.insert(jobs)
            again = self._driver.insert(jobs, repeat=True)
            assert all(getattr(answer, "existed", True) for answer in again)
        self.arrived[queue] += sum(not getattr(answer, "existed", True) for answer in answers)

    def _reserve(self, queue: str) -> None:
        self._held += self._subject.reserve(queue, limit=self._random.choice([1, 5, 40]))

    def _settle(self, _: str) -> None:
        self._random.shuffle(self._held)
        ended, self._held = self._held[:20], self._held[20:]
        outcomes = [
            Outcome.ack(),
            Outcome.retry(after=timedelta(seconds=self._random.choice([0, 30])), failure=BOOM),
            Outcome.fail("hopeless", failure=BOOM),
            Outcome.snooze(after=timedelta(0)),
            Outcome.release(bound=3),
        ]
        self._driver.settle([Settlement(claim.lease, self._random.choice(outcomes)) for claim in ended])

    def _dispatch(self, queue: str) -> None:
        sent = self._subject.dispatch(queue, limit=10)
        self._driver.record_dispatch([Sent(each, RESEND) for each in sent])
        claims = self._subject.claim(*[each.job_id for each in sent[::2]], queue=queue) if sent else []
        self._held += [each for each in claims if isinstance(each, Claim)]

    def _cancel(self, queue: str) -> None:
        self._driver.cancel(self._some(queue, _LIVING))

    def _requeue(self, queue: str) -> None:
        ended = self._some(queue, frozenset({Status.DEAD, Status.CANCELED}))
        self._driver.requeue(ended, token=new_token(), by="ops", reason="fixed", budget=2)
        self.arrived[queue] += len(ended)

    def _lose(self, _: str) -> None:
        self._subject.advance(self._random.choice([timedelta(0), LEASE]))
        self._driver.maintenance.expire(limit=30)

    def _remove(self, _: str) -> None:
        self._driver.maintenance.purge(older_than=timedelta(0), limit=5)
        self._driver.maintenance.prune(older_than=timedelta(0), limit=5)

    def _roll_up(self, _: str) -> None:
        self._driver.maintenance.roll_up(keep=TEN_YEARS)

    def _some(self, queue: str, statuses: frozenset[Status]) -> list[JobId]:
        page = self._driver.inspector.find(JobFilter(queue=queue, statuses=statuses), limit=5)
        return [job.id for job in page.jobs]


def _jobs(subject: Subject) -> list[JobSummary]:
    """Return all jobs, by a scan of the store."""
    jobs: list[JobSummary] = []
    page = subject.driver.inspector.find(JobFilter(), limit=1_000)
    jobs += page.jobs
    while page.after is not None:
        page = subject.driver.inspector.find(JobFilter(), limit=1_000, after=page.after)
        jobs += page.jobs
    return jobs


def _scanned(subject: Subject) -> Counter[tuple[str, Status]]:
    return Counter((job.queue, job.status) for job in _jobs(subject))


def _counted(subject: Subject) -> Counter[tuple[str, Status]]:
    return Counter({(queue.name, status): n for queue in subject.queues() for status, n in queue.counts.items() if n})


def _is_due(job: JobSummary, queue: str, now: datetime) -> bool:
    return job.queue == queue and job.status is not Status.PROCESSING and job.scheduled_for <= now


def _settle_one(subject: Subject, outcome: Outcome, *, queue: str = "default") -> None:
    subject.insert(queue=queue)
    [claim] = subject.reserve(queue)
    subject.settle(claim, outcome)


def _series(subject: Subject, metric: Metric, since: datetime, **options: object) -> list[SeriesPoint]:
    until = max(subject.clock.now(), since) + HOUR
    return subject.driver.inspector.series(SeriesQuery(metric=metric, since=since, until=until, **options))  # type: ignore[arg-type]


def _last(subject: Subject, metric: Metric, minute: datetime) -> dict[str, float]:
    points = _series(subject, metric, minute, by=GroupBy.QUEUE)
    return {point.group: point.value for point in points if point.value}


def _summed(subject: Subject, metric: Metric) -> Counter[str]:
    points = _series(subject, metric, subject.clock.now() - 30 * HOUR, by=GroupBy.QUEUE, step=HOUR)
    return Counter({point.group: 0 for point in points}) + sum(
        (Counter({point.group: int(point.value)}) for point in points), Counter()
    )


def _tallies(chance: random.Random, start: datetime) -> list[StatisticTally]:
    return [
        StatisticTally(
            start + chance.randrange(60) * MINUTE,
            metric,
            chance.choice(_QUEUES),
            chance.choice(["send", "resize"]),
            chance.choice(["FAILED", "SUCCEEDED"]) if metric is Metric.ATTEMPTS else f"{chance.randrange(BUCKETS):02}",
            chance.randrange(1, 5),
        )
        for metric in (Metric.ATTEMPTS, *sorted(SPANS))
        for _ in range(60)
    ]


def _grouped(
    tallies: list[StatisticTally], *, by: GroupBy, step: timedelta
) -> Counter[tuple[datetime, str, int | None]]:
    groups = Counter[tuple[datetime, str, int | None]]()
    for each in tallies:
        group = {GroupBy.NONE: "", GroupBy.QUEUE: each.queue, GroupBy.TYPE: each.type, GroupBy.STATUS: each.key}[by]
        bucket = int(each.key) if each.metric in SPANS else None
        groups[begin_of(each.minute, step), group, bucket] += each.count
    return groups


def _as_counts(points: list[SeriesPoint]) -> Counter[tuple[datetime, str, int | None]]:
    counts = Counter[tuple[datetime, str, int | None]]()
    for point in points:
        if point.buckets:
            assert point.value == sum(point.buckets)
            counts += Counter({(point.at, point.group, n): count for n, count in enumerate(point.buckets)})
        else:
            counts[point.at, point.group, None] += int(point.value)
    return counts
