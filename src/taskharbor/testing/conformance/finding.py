"""Finding a few jobs among many: by what hangs on them, and page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.answers import JobFilter, reach
from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_job_id
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.testing.conformance.pruning import LATEST, prune
from taskharbor.testing.conformance.subject import BOOM, LEASE, Subject, new_job

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId

_PAGE: Final = 10
_ODD: Final = {'$.a"b': "7", "ä": 'it\'s "7"\\', "": "", "7": "7"}


def test_jobs_are_listed_by_a_tag(subject: Subject) -> None:
    wanted = subject.insert(metadata={"tenant": "7", "shop": "8"})
    for metadata in ({"tenant": "8"}, {"shop": "7"}, {"tenant": "77"}, {}):
        subject.insert(metadata=metadata)

    assert _found(subject, tag=("tenant", "7")) == [wanted]


def test_a_tag_is_found_whatever_its_letters(subject: Subject) -> None:
    wanted = subject.insert(metadata=_ODD)
    subject.insert(metadata={"a": '{"b": "7"}'})

    assert [_found(subject, tag=tag) for tag in _ODD.items()] == [[wanted]] * len(_ODD)
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


def test_what_died_without_an_error_is_listed_by_an_empty_fingerprint(subject: Subject) -> None:
    wanted = [_kill(subject, None)]
    subject.insert(max_attempts=1)
    lost = subject.take()
    subject.advance(LEASE)
    subject.driver.upkeep.expire(limit=1)
    wanted.append(lost.job.id)
    spent = subject.insert()
    subject.make_spent(spent)
    subject.driver.upkeep.bury(limit=1)
    _kill(subject, BOOM)
    subject.insert()

    assert _found(subject, fingerprint="") == [spent, *wanted[::-1]]


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


def test_a_rare_job_is_found_behind_more_jobs_than_are_looked_at_for_a_page(subject: Subject) -> None:
    rare = new_job(metadata={"tenant": "7"})
    subject.driver.insert([rare, *(new_job() for _ in range(2 * reach(_PAGE)))])

    pages = _pages(subject, JobFilter(tag=("tenant", "7")))

    assert [job_id for page in pages for job_id in page] == [rare.id]


def test_pages_hold_every_match_once_however_far_apart_they_are(subject: Subject) -> None:
    jobs = [new_job(type="welcome" if n % 150 == 0 else "greet") for n in range(3 * reach(_PAGE))]
    subject.driver.insert(jobs)

    pages = _pages(subject, JobFilter(type="welcome"), limit=3)

    assert [job_id for page in pages for job_id in page] == [job.id for job in reversed(jobs) if job.type == "welcome"]
    assert max(map(len, pages)) <= 3


def test_a_page_may_be_larger_than_what_is_looked_at_for_a_small_one(subject: Subject) -> None:
    count = reach(_PAGE) + 10
    subject.driver.insert([new_job() for _ in range(count + 1)])

    page = subject.driver.inspector.find(JobFilter(), limit=count)

    assert (len(page.jobs), page.after) == (count, page.jobs[-1].id)


def test_a_job_is_found_by_its_key(subject: Subject) -> None:
    job_id = subject.insert(idempotency_key="order 7")
    subject.insert(idempotency_key="order 77")
    subject.insert()

    assert subject.driver.inspector.by_key("order 7") == [job_id]
    assert subject.driver.inspector.by_key("order 8") == []


def test_the_holders_of_a_key_are_listed_by_queue(subject: Subject) -> None:
    ids = {queue: new_job_id() for queue in "cabd"}
    for queue, job_id in ids.items():
        subject.insert(id=job_id, queue=queue, idempotency_key="once")

    assert subject.driver.inspector.by_key("once") == [ids[queue] for queue in "abcd"]


def test_a_key_that_was_freed_finds_nobody(subject: Subject) -> None:
    subject.bring(Status.SUCCEEDED, idempotency_key="once")
    held = subject.driver.inspector.by_key("once")
    subject.advance(LATEST)

    prune(subject)

    assert (len(held), subject.driver.inspector.by_key("once")) == (1, [])


def _kill(subject: Subject, failure: Failure | None) -> JobId:
    job_id = subject.insert()
    subject.settle(subject.take(), Outcome.fail("hopeless", failure=failure))
    return job_id


def _found(subject: Subject, **wanted: Any) -> list[JobId]:
    return [job.id for job in subject.driver.inspector.find(JobFilter(**wanted), limit=_PAGE).jobs]


def _pages(subject: Subject, wanted: JobFilter, *, limit: int = _PAGE) -> list[list[JobId]]:
    """Turn pages to the end; a driver that knows no end is stopped."""
    pages: list[list[JobId]] = []
    after: JobId | None = None
    for _ in range(100):
        page = subject.driver.inspector.find(wanted, limit=limit, after=after)
        pages.append([job.id for job in page.jobs])
        after = page.after
        if after is None:
            break
    return pages
