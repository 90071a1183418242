"""Searching jobs by tag, error fingerprint and idempotency key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_job_id
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import JobFilter
from taskharbor.core.states import Status
from taskharbor.testing.conformance.retention import LATEST, prune
from taskharbor.testing.conformance.subject import BOOM, LEASE, Subject

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId

_PAGE: Final = 10
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
