"""Reading jobs, history, queues and workers through the inspector."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.ids import new_job_id
from taskharbor.core.model import Progress, Schedule, WorkerRecord
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import JobFilter, Page, QueueStats
from taskharbor.core.states import FINAL, Status
from taskharbor.testing.conformance.subject import LONG_AGO, TICK, Subject, id_at

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId

_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)


def test_the_inspector_returns_the_stores_time(subject: Subject) -> None:
    subject.advance(TICK)

    now = subject.driver.inspector.now()

    assert (now, now.utcoffset()) == (subject.clock.now(), UTC.utcoffset(None))


def test_the_inspector_returns_when_the_next_job_of_a_queue_is_due(subject: Subject) -> None:
    subject.insert()
    assert subject.driver.inspector.next_due_in("default") is None

    for minutes, fields in ((5, {}), (3, {"priority": 7}), (4, {"priority": -7}), (1, {"queue": "mail"})):
        subject.insert(scheduled_for=subject.clock.now() + timedelta(minutes=minutes), **fields)
    assert subject.driver.inspector.next_due_in("default") == timedelta(minutes=3)

    subject.advance(timedelta(minutes=3))
    assert subject.driver.inspector.next_due_in("default") == timedelta(minutes=1)


def test_unknown_jobs_are_left_out_when_reading(subject: Subject) -> None:
    known, unknown = subject.insert(), new_job_id()
    subject.insert()

    jobs = subject.driver.inspector.get([unknown, known])

    assert {job_id: job.id for job_id, job in jobs.items()} == {known: known}


@pytest.mark.parametrize("status", Status)
def test_a_summary_is_the_job_without_payload_and_result(subject: Subject, status: Status) -> None:
    new = {"payload": b"secret", "idempotency_key": "k", "metadata": {"tenant": "7"}, "timeout": _SECOND}
    job_id, unknown = subject.bring(status, **new), new_job_id()
    job = subject.job(job_id)

    assert job.payload == b"secret"
    assert subject.driver.inspector.summaries([unknown, job_id]) == {job_id: job.summary()}
    assert subject.driver.inspector.find(JobFilter(), limit=1).jobs == (job.summary(),)


def test_a_summary_contains_the_progress_of_a_running_job(subject: Subject) -> None:
    subject.insert()
    claim, progress = subject.take(), Progress(3, 7, "half")
    subject.driver.save_progress([(claim.lease, progress)])

    summaries = subject.driver.inspector.summaries([claim.job.id])

    assert (summaries[claim.job.id].progress, summaries[claim.job.id].lease_token) == (progress, claim.lease.token)


def test_jobs_are_listed_newest_id_first(subject: Subject) -> None:
    oldest, middle, newest = (new_job_id() for _ in range(3))
    for job_id in (middle, newest, oldest):
        subject.insert(id=job_id)

    page = subject.driver.inspector.find(JobFilter(), limit=10)

    assert page == Page(tuple(subject.job(job_id).summary() for job_id in (newest, middle, oldest)), after=None)


def test_jobs_are_listed_by_queue(subject: Subject) -> None:
    wanted = subject.insert(queue="mail")
    subject.insert()

    assert _found(subject, queue="mail") == [wanted]


def test_jobs_are_listed_by_type(subject: Subject) -> None:
    wanted = subject.insert(type="welcome")
    subject.insert()

    assert _found(subject, type="welcome") == [wanted]


def test_jobs_are_listed_by_state(subject: Subject) -> None:
    wanted = [subject.bring(Status.SUCCEEDED), subject.bring(Status.CANCELED)]
    subject.insert()

    assert _found(subject, statuses=frozenset({Status.SUCCEEDED, Status.CANCELED})) == wanted[::-1]


def test_jobs_are_listed_by_creation_time_including_the_start(subject: Subject) -> None:
    wanted = subject.insert(created_at=LONG_AGO, id=id_at(LONG_AGO))
    subject.insert(created_at=LONG_AGO - TICK, id=id_at(LONG_AGO))

    assert _found(subject, since=LONG_AGO) == [wanted]


def test_jobs_are_listed_by_creation_time_excluding_the_end(subject: Subject) -> None:
    wanted = subject.insert(created_at=LONG_AGO - TICK, id=id_at(LONG_AGO))
    subject.insert(created_at=LONG_AGO, id=id_at(LONG_AGO))

    assert _found(subject, until=LONG_AGO) == [wanted]


def test_a_page_is_filled_with_the_jobs_that_match_every_filter(subject: Subject) -> None:
    match = {"queue": "mail", "type": "welcome", "created_at": LONG_AGO}
    wanted = [subject.insert(**match, id=id_at(LONG_AGO)) for _ in range(2)]
    subject.cancel(subject.insert(**match, id=id_at(LONG_AGO)))
    for mismatch in (
        {"queue": "default"},
        {"type": "greet"},
        {"created_at": LONG_AGO - TICK},
        {"created_at": LONG_AGO + TICK},
    ):
        subject.insert(**match | mismatch, id=id_at(LONG_AGO))
    jobs = JobFilter(
        queue="mail",
        type="welcome",
        statuses=frozenset({Status.PENDING}),
        since=LONG_AGO,
        until=LONG_AGO + TICK,
    )

    page = subject.driver.inspector.find(jobs, limit=2)

    assert page == Page(tuple(subject.job(job_id).summary() for job_id in reversed(wanted)), after=None)


def test_pages_hold_every_job_once(subject: Subject) -> None:
    a, b, c, d, e = (subject.insert() for _ in range(5))

    assert _pages(subject, limit=2) == [[e, d], [c, b], [a]]


def test_a_full_page_may_be_the_last(subject: Subject) -> None:
    a, b, c, d = (subject.insert() for _ in range(4))

    assert _pages(subject, limit=2) == [[d, c], [b, a]]


def test_jobs_inserted_between_pages_neither_repeat_nor_hide_others(subject: Subject) -> None:
    a, b, c = (subject.insert() for _ in range(3))
    first = subject.driver.inspector.find(JobFilter(), limit=2)
    subject.insert()

    second = subject.driver.inspector.find(JobFilter(), limit=2, after=first.after)

    assert [[job.id for job in page.jobs] for page in (first, second)] == [[c, b], [a]]


def test_the_history_of_a_job_is_listed_oldest_first(subject: Subject) -> None:
    job_id = subject.insert()
    for outcome in (Outcome.snooze(after=_SECOND), Outcome.retry(after=_SECOND), Outcome.fail("hopeless")):
        subject.settle(subject.take(), outcome)
        subject.advance(_SECOND)

    attempts = subject.attempts(job_id)

    assert [each.event.value for each in attempts] == ["snooze", "retry", "fail"]


def test_history_and_events_are_returned_for_the_requested_jobs_only(subject: Subject) -> None:
    requested = {subject.bring(Status.DEAD) for _ in range(2)}
    subject.bring(Status.DEAD)

    attempts = subject.driver.inspector.attempts([*requested, new_job_id()])
    events = subject.driver.inspector.outbox([*requested, new_job_id()])

    assert (len(attempts), {each.job_id for each in attempts}) == (2, requested)
    assert (len(events), {row.event.job_id for row in events}) == (2, requested)


def test_queues_are_listed_by_name(subject: Subject) -> None:
    for queue in "hgfedcba":
        subject.insert(queue=queue)

    queues = subject.queues()

    assert [queue.name for queue in queues] == list("abcdefgh")


def test_a_new_queue_is_listed_before_its_jobs_are_counted(subject: Subject) -> None:
    """Janitors count the jobs: if all have died, operators must still see that jobs wait."""
    now = subject.clock.now()
    subject.insert(queue="mail")
    subject.insert(queue="later", scheduled_for=now + _SECOND)

    queues = subject.driver.inspector.queues()

    assert [(queue.name, queue.oldest_due) for queue in queues] == [("later", None), ("mail", now)]


def test_a_queues_stats_count_its_jobs_in_each_state(subject: Subject) -> None:
    now = subject.clock.now()
    subject.bring(Status.CANCELED, queue="mail")
    # The order in which `Subject.bring` can create them: it requires that no other job is due.
    for status in (*sorted(FINAL), Status.PROCESSING, Status.ENQUEUED, Status.FAILED, Status.PENDING, Status.PENDING):
        subject.bring(status)

    queues = subject.queues()

    default = dict.fromkeys(Status, 1) | {Status.PENDING: 2}
    mail = dict.fromkeys(Status, 0) | {Status.CANCELED: 1}
    assert queues == [
        QueueStats(name="default", counts=default, oldest_due=now, paused_at=None, paused_by=None),
        QueueStats(name="mail", counts=mail, oldest_due=None, paused_at=None, paused_by=None),
    ]


def test_a_state_without_jobs_is_counted_as_zero(subject: Subject) -> None:
    subject.insert()
    [before] = subject.queues()
    subject.take()

    [after] = subject.queues()

    assert [queue.counts[Status.PENDING] for queue in (before, after)] == [1, 0]
    assert after.counts[Status.PROCESSING] == 1


def test_a_queues_stats_contain_the_oldest_due_time(subject: Subject) -> None:
    subject.bring(Status.PROCESSING)
    subject.advance(_SECOND)
    due = subject.clock.now()
    subject.bring(Status.ENQUEUED)
    subject.advance(_SECOND)
    subject.insert()

    [queue] = subject.queues()

    assert queue.oldest_due == due


def test_the_oldest_due_time_of_a_queue_ignores_priorities(subject: Subject) -> None:
    subject.insert(queue="a", priority=0)
    due = subject.clock.now()
    subject.insert(queue="b", priority=0)
    subject.advance(_SECOND)
    subject.insert(queue="b", priority=1)

    queues = subject.queues()

    assert [(queue.name, queue.oldest_due) for queue in queues] == [("a", due), ("b", due)]


def test_the_oldest_due_time_ignores_jobs_that_are_not_due(subject: Subject) -> None:
    due = subject.clock.now() + _SECOND
    subject.insert(scheduled_for=due)

    subject.advance(_SECOND - TICK)
    [before] = subject.queues()
    subject.advance(TICK)
    [after] = subject.queues()

    assert (before.oldest_due, after.oldest_due) == (None, due)


def test_an_empty_queue_is_listed_while_it_is_paused(subject: Subject) -> None:
    paused_at = subject.clock.now()
    subject.driver.control.pause(["empty"], by="ann")
    subject.advance(_SECOND)

    while_paused = subject.queues()
    subject.driver.control.resume(["empty"])
    after_that = subject.queues()

    counts = dict.fromkeys(Status, 0)
    assert while_paused == [
        QueueStats(name="empty", counts=counts, oldest_due=None, paused_at=paused_at, paused_by="ann"),
    ]
    assert after_that == []


def test_a_queue_whose_last_job_was_pruned_is_gone(subject: Subject) -> None:
    subject.bring(Status.SUCCEEDED)
    subject.advance(2 * _DAY)

    subject.driver.maintenance.prune(older_than=_DAY, limit=10)

    assert subject.queues() == []


def test_workers_are_listed_by_id(subject: Subject) -> None:
    for worker_id in ("w2", "w3", "w1"):
        _record_worker(subject, worker_id)

    workers = subject.driver.inspector.workers()

    assert [worker.id for worker in workers] == ["w1", "w2", "w3"]


def test_reading_changes_nothing(subject: Subject) -> None:
    _fill(subject)

    first, second = _read_everything(subject), _read_everything(subject)

    assert first == second


def _found(subject: Subject, **wanted: Any) -> list[JobId]:
    return [job.id for job in subject.driver.inspector.find(JobFilter(**wanted), limit=10).jobs]


def _pages(subject: Subject, *, limit: int) -> list[list[JobId]]:
    """Return all pages, but at most 10, in case a driver never returns a last one."""
    pages: list[list[JobId]] = []
    after: JobId | None = None
    for _ in range(10):
        page = subject.driver.inspector.find(JobFilter(), limit=limit, after=after)
        pages.append([job.id for job in page.jobs])
        after = page.after
        if after is None:
            break
    return pages


def _record_worker(subject: Subject, worker_id: str) -> None:
    worker = WorkerRecord(
        id=worker_id, host="localhost", pid=1, queues=(), types=(), concurrency=1, started_at=LONG_AGO
    )
    subject.driver.maintenance.record_worker(worker)


def _fill(subject: Subject) -> None:
    """Store at least one row of every kind."""
    for status in (*sorted(FINAL), Status.PROCESSING, Status.PENDING):
        subject.bring(status)
    _record_worker(subject, "w1")
    subject.driver.control.pause(["mail"], by="ann")
    nightly = Schedule(name="nightly", cron="0 2 * * *", timezone="UTC", type="clean", queue="mail", payload=b"{}")
    subject.driver.control.put_schedules([nightly])


def _read_everything(subject: Subject) -> tuple[object, ...]:
    inspector = subject.driver.inspector
    page = inspector.find(JobFilter(), limit=100)
    job_ids = [job.id for job in page.jobs]
    return (
        page,
        inspector.get(job_ids),
        inspector.summaries(job_ids),
        inspector.attempts(job_ids),
        inspector.outbox(job_ids),
        subject.queues(),
        subject.finished(since=LONG_AGO),
        inspector.workers(),
        dict(inspector.schedules()),
    )
