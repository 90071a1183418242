"""Conditions and locks in the SQL that only a second session or a raw write can test."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import pytest

from taskharbor.core.errors import JobNotFound
from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_token
from taskharbor.core.model import Claim, Progress
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import (
    Declined,
    Dispatch,
    Extended,
    Published,
    RefusalReason,
    Refused,
    Sent,
    Settled,
    Settlement,
    Unsent,
)
from taskharbor.core.states import Status
from taskharbor.drivers.postgres.server import ReplyLost
from taskharbor.testing.conformance.dead_groups import kill
from taskharbor.testing.conformance.subject import BOOM, LEASE, LOCK, TEN_YEARS
from tests.conformance.test_drivers import postgres
from tests.support.postgres import emptied
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.testing.conformance.subject import Subject

    T = TypeVar("T")

NONE: Final = timedelta(0)


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def subject(url: str) -> Iterator[Subject]:
    made = postgres(url)
    with closing(made.driver):
        yield made


def two_jobs(subject: Subject) -> list[JobId]:
    return [subject.insert() for _ in range(2)]


def two_claims(subject: Subject) -> list[Claim]:
    two_jobs(subject)
    return subject.reserve(limit=2)


def two_letters(subject: Subject) -> list[JobId]:
    return [subject.bring(Status.DEAD) for _ in range(2)]


def ids_of(claims: Sequence[Claim]) -> list[JobId]:
    return [claim.job.id for claim in claims]


Act = tuple[list["JobId"], "Callable[[], list[JobId]]"]
"""Two jobs in order, and a call that returns those it changed."""


def reserve(subject: Subject) -> Act:
    return two_jobs(subject), lambda: ids_of(subject.reserve())


def reclaim(subject: Subject) -> Act:
    ids = ids_of(two_claims(subject))
    subject.advance(LEASE)
    return ids, lambda: ids_of(subject.reserve())


def dispatch(subject: Subject) -> Act:
    return two_jobs(subject), lambda: [each.job_id for each in subject.dispatch(limit=1)]


def dispatch_again(subject: Subject) -> Act:
    ids = two_jobs(subject)
    subject.dispatch()
    subject.advance(LOCK)
    return ids, lambda: [each.job_id for each in subject.dispatch(limit=1)]


def extend(subject: Subject) -> Act:
    claims = two_claims(subject)
    leases = [claim.lease for claim in claims]

    def act() -> list[JobId]:
        answers = subject.driver.extend(leases, lease=LEASE)
        return [each.lease.job_id for each in answers if isinstance(each, Extended)]

    return ids_of(claims), act


def save_progress(subject: Subject) -> Act:
    claims = two_claims(subject)
    notes = [(claim.lease, Progress(done=1)) for claim in claims]

    def act() -> list[JobId]:
        kept = subject.driver.save_progress(notes)
        return [claim.job.id for claim, is_kept in zip(claims, kept, strict=True) if is_kept]

    return ids_of(claims), act


def ack(subject: Subject) -> Act:
    return _settling(subject, Outcome.ack())


def retry(subject: Subject) -> Act:
    return _settling(subject, Outcome.retry(after=LEASE, failure=BOOM))


def _settling(subject: Subject, outcome: Outcome) -> Act:
    claims = two_claims(subject)

    def act() -> list[JobId]:
        answers = subject.driver.settle([Settlement(claim.lease, outcome) for claim in claims])
        return [each.job_id for each in answers if isinstance(each, Settled)]

    return ids_of(claims), act


def sent(subject: Subject) -> Act:
    return _recording(subject, lambda each: Sent(each, LOCK))


def unsent(subject: Subject) -> Act:
    return _recording(subject, Unsent)


def declined(subject: Subject) -> Act:
    return _recording(subject, lambda each: Declined(each.job_id, each.seq))


def _recording(subject: Subject, result: Callable[[Dispatch], Sent | Unsent | Declined]) -> Act:
    two_jobs(subject)
    dispatches = subject.dispatch()

    def act() -> list[JobId]:
        answers = subject.driver.record_dispatch([result(each) for each in dispatches])
        return [each.job_id for each, is_recorded in zip(dispatches, answers, strict=True) if is_recorded]

    return [each.job_id for each in dispatches], act


def expire(subject: Subject) -> Act:
    ids = ids_of(two_claims(subject))
    subject.advance(LEASE)
    return ids, lambda: [each.job_id for each in subject.driver.maintenance.expire(limit=1)]


def bury(subject: Subject) -> Act:
    ids = two_jobs(subject)
    for job_id in ids:
        subject.exhaust(job_id)
    return ids, lambda: [each.job_id for each in subject.driver.maintenance.bury(limit=1)]


def claim_event(subject: Subject) -> Act:
    ids = two_letters(subject)
    return ids, lambda: [each.event.job_id for each in subject.driver.maintenance.claim_outbox(limit=1, lock=LOCK)]


def close_event(subject: Subject) -> Act:
    ids = two_letters(subject)

    def act() -> list[JobId]:
        subject.driver.maintenance.close_outbox("no publisher", unseen_for=NONE, older_than=NONE, limit=1)
        return [each.event.job_id for each in subject.driver.inspector.outbox(ids) if each.is_done]

    return ids, act


def purge(subject: Subject) -> Act:
    ids = two_letters(subject)
    publish(subject)

    def act() -> list[JobId]:
        subject.driver.maintenance.purge(older_than=NONE, limit=1)
        return [each for each in ids if each not in subject.driver.inspector.get(ids)]

    return ids, act


def publish(subject: Subject) -> None:
    events = subject.driver.maintenance.claim_outbox(limit=10, lock=LOCK)
    assert all(subject.driver.maintenance.settle_outbox([Published(each.event.event_id) for each in events]))


VERBS: Final[tuple[Callable[[Subject], Act], ...]] = (
    reserve, reclaim, dispatch, dispatch_again, sent, unsent, declined, extend, save_progress, ack, retry, expire,
    bury, claim_event, close_event, purge,
)  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_row_locked_by_another_session_is_skipped_but_not_the_next(
    verb: Callable[[Subject], Act], subject: Subject, url: str
) -> None:
    ids, act = verb(subject)

    with psycopg.connect(url) as other:
        other.execute("SELECT FROM th_jobs WHERE id = %s FOR UPDATE", [ids[0]])
        other.execute("SELECT FROM th_outbox WHERE job_id = %s FOR UPDATE", [ids[0]])

        assert act() == [ids[1]]


def waits_for_a_lock(url: str) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(url) as db:
        return db.execute(query).fetchone() != (0,)


def while_locked(url: str, statement: str, values: Sequence[Any], call: Callable[[], T]) -> T:
    """Run *call* until it waits for a session that has run *statement*; commit that, and return the result."""
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute(statement.encode(), values)
        answer = pool.submit(call)
        wait_until(lambda: waits_for_a_lock(url))
        other.commit()
        return answer.result(LIMIT_SECONDS)


def test_an_expired_lease_reclaimed_by_another_session_meanwhile_is_not_claimed(
    subject: Subject, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskharbor.drivers.postgres.claim.LOCK_TIMEOUT", "10s")  # this machine may be slow
    job_id = subject.bring(Status.PROCESSING)
    subject.advance(LEASE)
    token = new_token()
    reclaimed = (
        "UPDATE th_jobs SET lease_token = %s, lease_expires_at = lease_expires_at + interval '1 hour' WHERE id = %s"
    )

    [answer] = while_locked(url, reclaimed, [token, job_id], lambda: subject.claim(job_id))

    assert isinstance(answer, Refused)
    assert answer.reason is RefusalReason.LEASED
    assert [claim.lease.token for claim in subject.driver.read_back([token])] == [token]


def test_a_dead_letter_purged_by_another_session_meanwhile_is_not_requeued(subject: Subject, url: str) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    answer = while_locked(url, "DELETE FROM th_jobs WHERE id = %s", [job_id], lambda: subject.requeue(job_id))

    assert isinstance(answer, JobNotFound)
    assert [each.event.value for each in subject.attempts(job_id)] == ["fail"]
    assert [queue.counts.get(Status.DEAD) for queue in subject.queues()] == [1]  # a raw DELETE is not counted


def test_a_job_whose_attempt_already_has_a_row_is_reclaimed_by_message(subject: Subject, url: str) -> None:
    """An older version could claim a job twice under one token, which left such a row."""
    job_id = subject.insert()
    token = subject.take().lease.token
    subject.advance(LEASE)
    with psycopg.connect(url) as db:
        db.execute(
            "INSERT INTO th_attempts (job_id, token, life, attempt, ended_at, event, status, outcome)"
            " VALUES (%s, %s, 1, 1, now(), 'reclaim', 'PROCESSING', 'LOST')",
            [job_id, token],
        )

    [answer] = subject.claim(job_id)

    assert isinstance(answer, Claim)


@pytest.mark.parametrize("reply", [lambda made: Sent(made, LOCK), Unsent], ids=["sent", "unsent"])
def test_a_reply_about_a_job_that_is_not_enqueued_changes_nothing(
    reply: Callable[[Dispatch], Sent | Unsent], subject: Subject, url: str
) -> None:
    job_id, until = subject.insert(), subject.clock.now() + LOCK
    with psycopg.connect(url) as db:  # no method of the driver makes such a row
        db.execute("UPDATE th_jobs SET sends = 1, resends = 1, dispatch_at = %s WHERE id = %s", [until, job_id])
    before = subject.everything(job_id)

    answers = subject.driver.record_dispatch([reply(Dispatch(job_id, 1, 1, until))])

    assert answers == [False]
    assert subject.everything(job_id) == before


def test_a_session_of_another_program_with_a_reused_pid_is_not_terminated(subject: Subject, url: str) -> None:
    with psycopg.connect(url, application_name="shop") as other:
        pid = other.info.backend_pid

        subject.driver._connections.resolve(ReplyLost("gone", pid))  # type: ignore[attr-defined]  # noqa: SLF001  the only way to choose the process id

        assert other.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("outcome", [Outcome.ack(), Outcome.retry(after=LEASE, failure=BOOM)], ids=["ack", "retry"])
def test_in_a_users_transaction_a_locked_row_is_waited_for(outcome: Outcome, subject: Subject, url: str) -> None:
    job_id = subject.insert()
    settlement = Settlement(subject.take().lease, outcome)

    with psycopg.connect(url) as shop:
        joined = subject.driver.join(shop)  # type: ignore[attr-defined]
        locked = "SELECT FROM th_jobs WHERE id = %s FOR UPDATE"
        [answer] = while_locked(url, locked, [job_id], lambda: joined.settle([settlement]))

    assert isinstance(answer, Settled)


@pytest.mark.parametrize(
    "other", [{"type": "welcome"}, {"failure": Failure(fingerprint="cafe")}], ids=["type", "error"]
)
def test_an_empty_group_is_removed_when_another_group_gets_dead_letters(
    other: dict[str, Any], subject: Subject, url: str
) -> None:
    job_id = kill(subject)
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)
    subject.requeue(job_id, delay=TEN_YEARS)
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)
    kill(subject, **other)

    subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    with psycopg.connect(url) as db:
        assert db.execute("SELECT count FROM th_dead_groups").fetchall() == [(1,)]
