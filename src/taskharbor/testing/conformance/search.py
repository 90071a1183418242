"""Searching jobs: by tag, error fingerprint, worker, schedule, id and idempotency key; counting; the next ones."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId, new_job_id
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import JobFilter, Tally, scan_limit
from taskharbor.core.states import Status
from taskharbor.testing.conformance.retention import LATEST, prune
from taskharbor.testing.conformance.subject import BOOM, LEASE, LONG_AGO, Subject, id_at, new_job

_PAGE: Final = 10
_MILLISECOND: Final = timedelta(milliseconds=1)
_ODD_TAGS: Final = {'$.a"b': "7", "ä": 'it\'s "7"\\', "": "", "7": "7"}


def test_jobs_are_listed_by_a_tag(subject: Subject) -> None:
    wanted = subject.insert(metadata={"tenant": "7", "shop": "8"})
    for metadata in ({"tenant": "8"}, {"shop": "7"}, {"tenant": "77"}, {}):
        subject.insert(metadata=metadata)

    assert _found(subject, tag=("tenant", "7")) == [wanted]


def test_a_tag_is_found_whatever_its_characters(subject: Subject) -> None:
    wanted = subject.insert(metadata=_ODD_TAGS)
    subject.insert(metadata={"a": '{"b": "7"}'})

    assert [_found(subject, tag=tag) for tag in _ODD_TAGS.items()] == [[wanted]] * len(_ODD_TAGS)
    assert _found(subject, tag=("$.a", "7")) == []


def test_dead_letters_are_listed_by_the_error_that_killed_them(subject: Subject) -> None:
    wanted = [_kill(subject, BOOM), _kill(subject, BOOM)]
    _kill(subject, Failure(type="OSError", message="boom", fingerprint="cafe"))
    _kill(subject, None)

    assert _found(subject, fingerprint=BOOM.fingerprint) == wanted[::-1]


def test_an_error_that_did_not_kill_lists_no_job(subject: Subject) -> None:
    subject.insert(max_attempts=2)
    subject.settle(subject.take(), Outcome.retry(after=LEASE, failure=BOOM))
    before = _found(subject, fingerprint=BOOM.fingerprint)
    subject.advance(LEASE)
    subject.settle(subject.take(), Outcome.fail("hopeless"))

    assert (before, _found(subject, fingerprint=BOOM.fingerprint)) == ([], [])


def test_jobs_dead_without_an_error_are_listed_by_an_empty_fingerprint(subject: Subject) -> None:
    wanted = [_kill(subject, None)]
    subject.insert(max_attempts=1)
    lost = subject.take()
    subject.advance(LEASE)
    subject.driver.maintenance.expire(limit=1)
    wanted.append(lost.job.id)
    exhausted = subject.insert()
    subject.exhaust(exhausted)
    subject.driver.maintenance.bury(limit=1)
    _kill(subject, BOOM)
    subject.insert()

    assert _found(subject, fingerprint="") == [exhausted, *wanted[::-1]]


def test_a_requeued_job_is_not_listed_by_the_error_that_killed_it(subject: Subject) -> None:
    job_id = _kill(subject, BOOM)
    subject.requeue(job_id)
    requeued = _found(subject, fingerprint=BOOM.fingerprint)

    subject.settle(subject.take(), Outcome.fail("hopeless"))

    assert (requeued, _found(subject, fingerprint=BOOM.fingerprint)) == ([], [])
    assert _found(subject, fingerprint="") == [job_id]


def test_a_fingerprint_and_a_state_that_is_not_dead_list_nothing(subject: Subject) -> None:
    _kill(subject, BOOM)

    assert _found(subject, fingerprint=BOOM.fingerprint, statuses=frozenset({Status.PENDING})) == []


def test_jobs_are_listed_by_the_worker_that_ran_them_last(subject: Subject) -> None:
    subject.insert(), subject.insert(), subject.insert()
    [first, _] = [*subject.reserve(worker="w1"), *subject.reserve(worker="w2")]
    subject.settle(first, Outcome.ack())
    [held] = subject.reserve(worker="w1")

    assert _found(subject, worker="w1") == [held.job.id, first.job.id]
    assert _found(subject, worker="w1", statuses=frozenset({Status.PROCESSING})) == [held.job.id]


def test_jobs_are_listed_by_their_schedule(subject: Subject) -> None:
    wanted = subject.insert(metadata={"schedule": "nightly", "tenant": "7"})
    for metadata in ({"schedule": "hourly", "tenant": "7"}, {"tenant": "nightly"}, {}):
        subject.insert(metadata=metadata)

    assert _found(subject, schedule="nightly") == [wanted]
    assert _found(subject, schedule="nightly", tag=("tenant", "7")) == [wanted]
    assert _found(subject, schedule="nightly", tag=("tenant", "8")) == []


def test_jobs_are_listed_by_the_first_digits_of_their_id(subject: Subject) -> None:
    ids = [JobId(UUID(hex=digits.ljust(32, "0"))) for digits in ("0199a0", "0199a1f", "0199a1ffff", "0199a2")]
    for job_id in ids:
        subject.insert(id=job_id)

    assert _found(subject, id_prefix="0199a1") == [ids[2], ids[1]]
    assert _found(subject, id_prefix="0199a1f") == [ids[2], ids[1]]
    assert _found(subject, id_prefix=ids[3].hex) == [ids[3]]
    assert _found(subject, id_prefix="0") == ids[::-1]


def test_a_search_by_creation_time_ends_at_ids_an_hour_older(subject: Subject) -> None:
    most, hour = scan_limit(_PAGE), timedelta(hours=1)
    old = [new_job(id=id_at(LONG_AGO - hour - _MILLISECOND), created_at=LONG_AGO) for _ in range(most + 1)]
    subject.driver.insert(old)
    wanted = subject.insert(id=id_at(LONG_AGO - hour), created_at=LONG_AGO)

    found = subject.driver.inspector.find(JobFilter(since=LONG_AGO), limit=_PAGE)

    assert ([job.id for job in found.jobs], found.after, found.looked_back_to) == ([wanted], None, None)


def test_a_search_by_creation_time_begins_at_ids_an_hour_newer(subject: Subject) -> None:
    most, hour = scan_limit(_PAGE), timedelta(hours=1)
    subject.driver.insert([new_job(id=id_at(LONG_AGO + hour + _MILLISECOND)) for _ in range(most)])
    wanted = subject.insert(id=id_at(LONG_AGO + hour - _MILLISECOND), created_at=LONG_AGO - _MILLISECOND)

    assert _found(subject, until=LONG_AGO) == [wanted]


def test_a_page_reports_how_far_back_it_has_looked(subject: Subject) -> None:
    most = scan_limit(_PAGE)
    subject.driver.insert([new_job(id=id_at(LONG_AGO)) for _ in range(most)])
    subject.driver.insert([new_job(id=id_at(LONG_AGO - _MILLISECOND))])

    page = subject.driver.inspector.find(JobFilter(queue="mail"), limit=_PAGE)
    last = subject.driver.inspector.find(JobFilter(queue="mail"), limit=_PAGE, after=page.after)

    assert (page.looked_back_to, last.looked_back_to) == (LONG_AGO, None)


def test_matching_jobs_are_counted_scan_by_scan(subject: Subject) -> None:
    jobs = [new_job(queue="mail" if n % 2 else "default") for n in range(scan_limit(1) + 10)]
    subject.driver.insert(jobs)

    first = subject.driver.inspector.count(JobFilter(queue="mail"))
    second = subject.driver.inspector.count(JobFilter(queue="mail"), after=first.after)

    assert first == Tally(scan_limit(1) // 2, jobs[10].id)
    assert second == Tally(5, None)


def test_dead_letters_of_an_error_are_counted(subject: Subject) -> None:
    _kill(subject, BOOM), _kill(subject, BOOM), _kill(subject, None)

    assert subject.driver.inspector.count(JobFilter(fingerprint=BOOM.fingerprint)) == Tally(2, None)
    assert subject.driver.inspector.count(JobFilter()) == Tally(3, None)
    assert subject.driver.inspector.count(JobFilter(queue="mail")) == Tally(0, None)


def test_the_next_jobs_are_those_that_are_reserved_next(subject: Subject) -> None:
    now = subject.clock.now()
    for priority, seconds in ((0, 0), (1, 9), (-1, 3), (0, 5), (-1, 7), (0, 5)):
        subject.insert(priority=priority, scheduled_for=now - timedelta(seconds=seconds))
    subject.insert(queue="mail", priority=-1, scheduled_for=now - timedelta(hours=1))
    subject.bring(Status.SUCCEEDED, priority=-9)

    expected = subject.driver.inspector.next_up("default", limit=4)

    assert [job.id for job in expected] == [claim.job.id for claim in subject.reserve(limit=4)]
    assert len(subject.driver.inspector.next_up("default", limit=4)) == 2


def test_jobs_that_are_not_due_follow_by_their_due_time(subject: Subject) -> None:
    now = subject.clock.now()
    late, soon, due = (
        subject.insert(priority=priority, scheduled_for=now + timedelta(seconds=seconds))
        for priority, seconds in ((-5, 9), (5, 1), (7, 0))
    )

    assert [job.id for job in subject.driver.inspector.next_up("default", limit=9)] == [due, soon, late]
    assert [job.id for job in subject.driver.inspector.next_up("default", limit=2)] == [due, soon]
    assert subject.driver.inspector.next_up("mail", limit=2) == []


def test_an_exhausted_job_is_not_among_the_next(subject: Subject) -> None:
    exhausted, wanted, later = subject.insert(), subject.insert(), subject.insert(delay=LEASE)
    subject.exhaust(exhausted)
    subject.exhaust(later)

    assert [job.id for job in subject.driver.inspector.next_up("default", limit=9)] == [wanted]


def test_a_job_is_found_by_its_key(subject: Subject) -> None:
    job_id = subject.insert(idempotency_key="order 7")
    subject.insert(idempotency_key="order 77")
    subject.insert()

    assert subject.driver.inspector.find_by_key("order 7") == [job_id]
    assert subject.driver.inspector.find_by_key("order 8") == []


def test_the_holders_of_a_key_are_listed_by_queue(subject: Subject) -> None:
    ids = {queue: new_job_id() for queue in "cabd"}
    for queue, job_id in ids.items():
        subject.insert(id=job_id, queue=queue, idempotency_key="once")

    assert subject.driver.inspector.find_by_key("once") == [ids[queue] for queue in "abcd"]


def test_a_freed_key_finds_no_job(subject: Subject) -> None:
    subject.bring(Status.SUCCEEDED, idempotency_key="once")
    held = subject.driver.inspector.find_by_key("once")
    subject.advance(LATEST)

    prune(subject)

    assert (len(held), subject.driver.inspector.find_by_key("once")) == (1, [])


def _kill(subject: Subject, failure: Failure | None) -> JobId:
    job_id = subject.insert()
    subject.settle(subject.take(), Outcome.fail("hopeless", failure=failure))
    return job_id


def _found(subject: Subject, **wanted: Any) -> list[JobId]:
    return [job.id for job in subject.driver.inspector.find(JobFilter(**wanted), limit=_PAGE).jobs]
