"""The log lines of attempts: fenced by the token, bounded for each job, removed with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.log_lines import AttemptLines, LogLine
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Published
from taskharbor.testing.conformance.subject import BOOM, LEASE

if TYPE_CHECKING:
    from taskharbor.core.model import Claim
    from taskharbor.testing.conformance.subject import Subject

AT: Final = datetime(2030, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
ODD_TEXT: Final = 'a "quoted"\nline\twith \\ 日本 \U0001f600 \x1b[2J and \x7f'
RETRY: Final = Outcome.retry(after=timedelta(0), failure=BOOM)
KEEP: Final = 3
DAY: Final = timedelta(days=1)


def log_of(claim: Claim, *texts: str, dropped: int = 0) -> AttemptLines:
    """Return the lines of an attempt, one for each of *texts*."""
    lines = tuple(LogLine(AT + number * LEASE, "INFO", "shop", text) for number, text in enumerate(texts))
    job = claim.job
    return AttemptLines(
        job_id=job.id,
        token=claim.lease.token,
        attempt=job.attempt_count,
        worker_id=job.worker_id,
        dropped=dropped,
        lines=lines,
    )


def settled(subject: Subject, outcome: Outcome, *texts: str) -> AttemptLines:
    """Run the job that is due, and save lines of this attempt; return them."""
    claim = subject.take()
    subject.settle(claim, outcome)
    log = log_of(claim, *texts)
    assert subject.driver.attempt_logs.save([log], keep=KEEP) == [True]
    return log


def texts_of(subject: Subject, *job_ids: object) -> list[str]:
    saved = subject.driver.attempt_logs.read(job_ids)  # type: ignore[arg-type]
    return [line.text for log in saved for line in log.lines]


def test_the_lines_of_each_attempt_are_kept_as_they_are(subject: Subject) -> None:
    job_id = subject.insert()
    first = subject.take(worker="w-1")
    subject.settle(first, RETRY)
    failed = log_of(first, "one", ODD_TEXT, "", dropped=2**40)
    subject.driver.attempt_logs.save([failed], keep=KEEP)
    subject.advance(LEASE)
    second = subject.take(worker="w-2")
    subject.settle(second, Outcome.ack())
    subject.driver.attempt_logs.save([log_of(second, "three")], keep=KEEP)

    saved = subject.driver.attempt_logs.read([job_id])

    assert [(each.attempt, each.worker_id, each.token) for each in saved] == [
        (1, "w-1", first.lease.token),
        (2, "w-2", second.lease.token),
    ]
    assert (saved[0].lines, saved[0].dropped) == (failed.lines, 2**40)
    assert saved[1].saved_at == subject.clock.now()


def test_lines_are_refused_before_the_outcome_is_recorded(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()

    assert subject.driver.attempt_logs.save([log_of(claim, "early")], keep=KEEP) == [False]
    assert subject.driver.attempt_logs.read([job_id]) == []


def test_lines_of_a_lost_attempt_and_of_another_token_are_refused(subject: Subject) -> None:
    job_id = subject.insert()
    lost = subject.take()
    subject.advance(LEASE)
    subject.driver.maintenance.expire(limit=10)
    log = settled(subject, Outcome.ack(), "mine")
    forged = AttemptLines(job_id=job_id, token=new_token(), attempt=2, worker_id=None, dropped=0, lines=log.lines)

    assert subject.driver.attempt_logs.save([log_of(lost, "lost")], keep=KEEP) == [False]
    assert subject.driver.attempt_logs.save([forged], keep=KEEP) == [False]
    assert texts_of(subject, job_id) == ["mine"]


def test_a_requeue_is_not_an_attempt_with_lines(subject: Subject) -> None:
    job_id, token = subject.insert(), new_token()
    log = settled(subject, Outcome.fail("hopeless"), "mine")
    subject.requeue(job_id, token=token)
    forged = AttemptLines(job_id=job_id, token=token, attempt=2, worker_id=None, dropped=0, lines=log.lines)

    assert subject.driver.attempt_logs.save([forged], keep=KEEP) == [False]


def test_lines_of_an_earlier_attempt_are_saved_after_a_later_one_has_ended(subject: Subject) -> None:
    job_id = subject.insert()
    first = subject.take()
    subject.settle(first, RETRY)
    settled(subject, Outcome.ack(), "second")

    assert subject.driver.attempt_logs.save([log_of(first, "first")], keep=KEEP) == [True]
    assert texts_of(subject, job_id) == ["second", "first"]


def test_lines_saved_again_stay_as_they_were(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.settle(claim, Outcome.ack())
    subject.driver.attempt_logs.save([log_of(claim, "first")], keep=1)

    assert subject.driver.attempt_logs.save([log_of(claim, "again")], keep=1) == [True]
    assert texts_of(subject, job_id) == ["first"]


def test_a_call_saves_each_log_by_itself(subject: Subject) -> None:
    first, second = subject.insert(), subject.insert()
    claims = {each.job.id: each for each in subject.reserve(limit=2)}
    subject.settle(claims[first], Outcome.ack())
    logs = [log_of(claims[second], "runs"), log_of(claims[first], "has ended")]

    assert subject.driver.attempt_logs.save(logs, keep=KEEP) == [False, True]
    assert texts_of(subject, second, first) == ["has ended"]


def test_the_lines_of_the_newest_attempts_of_a_job_are_kept(subject: Subject) -> None:
    other = subject.insert()
    settled(subject, Outcome.ack(), "other")
    job_id = subject.insert(max_attempts=10)
    for number in range(KEEP + 2):
        settled(subject, Outcome.snooze(after=timedelta(0)), str(number))

    assert texts_of(subject, job_id) == ["2", "3", "4"]
    assert texts_of(subject, other) == ["other"]


def test_lines_are_read_in_the_order_of_the_jobs_that_are_asked_for(subject: Subject) -> None:
    ids = []
    for number in range(3):
        ids.append(subject.insert())
        settled(subject, Outcome.ack(), str(number))

    assert texts_of(subject, ids[2], new_job_id(), ids[0]) == ["2", "0"]


def test_lines_are_removed_with_their_job_when_it_is_pruned(subject: Subject) -> None:
    old = subject.insert()
    settled(subject, Outcome.ack(), "old")
    canceled = subject.insert()
    settled(subject, Outcome.cancel("no"), "canceled")
    subject.advance(3 * DAY)
    young = subject.insert()
    settled(subject, Outcome.ack(), "young")
    while subject.driver.maintenance.prune(older_than=DAY, limit=1):
        pass

    assert subject.driver.inspector.get([old, canceled]) == {}
    assert texts_of(subject, old, canceled, young) == ["young"]


def test_lines_of_a_dead_letter_are_removed_when_it_is_purged(subject: Subject) -> None:
    kept, purged = subject.insert(), subject.insert()
    for text in ("one", "two"):
        settled(subject, Outcome.fail("hopeless", failure=BOOM), text)
    while events := subject.driver.maintenance.claim_outbox(limit=10, lock=LEASE):
        subject.driver.maintenance.settle_outbox([Published(each.event.event_id) for each in events])

    assert subject.driver.maintenance.purge(older_than=timedelta(0), limit=10, job_ids=[purged]) == 1
    assert len(texts_of(subject, kept)) == 1
    assert texts_of(subject, purged) == []
