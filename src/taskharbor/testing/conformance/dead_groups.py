"""Groups of dead letters with the same queue, type and error."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import DeadLetterGroup
from taskharbor.core.states import Status
from taskharbor.testing.conformance.retention import LATEST, prune, publish, purge
from taskharbor.testing.conformance.subject import BOOM, LEASE, TEN_YEARS, TICK, Subject

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId

_OTHER: Final = Failure(type="OSError", message="no route", fingerprint="cafe")


def test_a_group_has_the_count_times_and_error_of_its_letters(subject: Subject) -> None:
    kill(subject)
    first_at = subject.clock.now()
    subject.advance(TICK)
    newest = kill(subject, Failure(type="ValueError", message="boom again", fingerprint=BOOM.fingerprint))

    groups = groups_of(subject)

    assert groups == [
        DeadLetterGroup(
            queue="default",
            type="greet",
            fingerprint=BOOM.fingerprint,
            count=2,
            error="ValueError: boom again",
            first_at=first_at,
            last_at=subject.clock.now(),
            sample=newest,
        )
    ]


def test_the_sample_is_the_letter_that_died_last_whatever_its_id(subject: Subject) -> None:
    older, newer = subject.insert(priority=1), subject.insert()
    for _ in range(2):
        subject.settle(subject.take(), Outcome.fail("hopeless", failure=BOOM))
        subject.advance(TICK)

    [group] = groups_of(subject)

    assert (group.sample, group.first_at) == (older, subject.job(newer).dead_at)


def test_of_letters_dead_at_the_same_time_the_newest_is_the_sample(subject: Subject) -> None:
    kill(subject)
    newest = kill(subject)

    [group] = groups_of(subject)

    assert group.sample == newest


def test_letters_of_another_queue_type_or_error_make_another_group(subject: Subject) -> None:
    variants: tuple[dict[str, Any], ...] = ({}, {"queue": "mail"}, {"type": "welcome"}, {"failure": _OTHER})
    letters = []
    for fields in variants:
        subject.advance(TICK)
        letters.append(subject.job(kill(subject, **fields)))

    groups = groups_of(subject)

    assert {(each.queue, each.type, each.fingerprint): each.count for each in groups} == {
        ("default", "greet", BOOM.fingerprint): 1,
        ("mail", "greet", BOOM.fingerprint): 1,
        ("default", "welcome", BOOM.fingerprint): 1,
        ("default", "greet", _OTHER.fingerprint): 1,
    }
    ends = {each.sample: (each.first_at, each.last_at) for each in groups}
    assert ends == {letter.id: (letter.dead_at, letter.dead_at) for letter in letters}


def test_the_largest_group_is_listed_first(subject: Subject) -> None:
    for queue, count in (("a", 2), ("b", 3), ("c", 1)):
        for _ in range(count):
            kill(subject, queue=queue)

    assert [group.queue for group in groups_of(subject)] == ["b", "a", "c"]
    assert [group.queue for group in groups_of(subject, limit=2)] == ["b", "a"]


def test_groups_can_be_filtered_by_queue(subject: Subject) -> None:
    kill(subject)
    kill(subject, queue="mail")

    assert [group.queue for group in groups_of(subject, queue="mail")] == ["mail"]
    assert groups_of(subject, queue="post") == []


@pytest.mark.parametrize("event", ["fail", "retry"])
def test_an_error_that_kills_makes_a_group(subject: Subject, event: str) -> None:
    job_id = subject.insert(max_attempts=1)
    outcomes = {
        "fail": Outcome.fail("hopeless", failure=BOOM),
        "retry": Outcome.retry(after=LEASE, failure=BOOM),
    }

    subject.settle(subject.take(), outcomes[event])

    assert counted(subject) == {BOOM.fingerprint: 1}
    assert groups_of(subject)[0].error == str(BOOM) == subject.job(job_id).last_error


@pytest.mark.parametrize("event", ["fail", "release"])
def test_a_death_without_an_error_has_no_fingerprint(subject: Subject, event: str) -> None:
    job_id = subject.insert(max_attempts=1)
    outcomes = {"fail": Outcome.fail("hopeless"), "release": Outcome.release(bound=0)}

    subject.settle(subject.take(), outcomes[event])

    assert counted(subject) == {"": 1}
    assert groups_of(subject)[0].error == subject.job(job_id).last_error


def test_a_job_that_lost_its_last_lease_is_counted(subject: Subject) -> None:
    subject.insert(max_attempts=2)
    subject.settle(subject.take(), Outcome.retry(after=LEASE, failure=BOOM))
    subject.advance(LEASE)
    subject.take()
    subject.advance(LEASE)

    subject.driver.maintenance.expire(limit=10)

    assert counted(subject) == {"": 1}


def test_a_buried_job_is_counted(subject: Subject) -> None:
    job_id = subject.insert()
    subject.exhaust(job_id)

    subject.driver.maintenance.bury(limit=10)

    assert counted(subject) == {"": 1}


def test_a_job_that_is_not_dead_is_in_no_group(subject: Subject) -> None:
    for status in (Status.SUCCEEDED, Status.CANCELED, Status.PROCESSING, Status.FAILED):
        subject.bring(status)
    subject.settle(subject.take(), Outcome.cancel("not needed"))

    assert groups_of(subject) == []


def test_a_requeued_letter_leaves_its_group(subject: Subject) -> None:
    first, second = kill(subject), kill(subject)
    before = counted(subject)

    subject.requeue(second)

    [group] = groups_of(subject)
    assert (before, group.count, group.sample) == ({BOOM.fingerprint: 2}, 1, first)


def test_a_job_that_will_be_retried_changes_no_group(subject: Subject) -> None:
    dead = subject.insert(max_attempts=1)
    subject.take()
    subject.advance(LEASE)
    subject.driver.maintenance.expire(limit=10)
    before = counted(subject)

    subject.bring(Status.FAILED)

    [group] = groups_of(subject)
    assert (before, group.count, group.sample) == ({"": 1}, 1, dead)


@pytest.mark.parametrize("way", ["requeued", "purged"])
def test_a_removed_letter_changes_only_its_own_group(subject: Subject, way: str) -> None:
    gone = kill(subject)
    others = [kill(subject, queue="mail"), kill(subject, type="welcome"), kill(subject, _OTHER)]

    if way == "requeued":
        subject.requeue(gone)
    else:
        publish(subject, gone)
        subject.advance(LATEST)
        purge(subject, job_ids=[gone])

    assert {each.sample: each.count for each in groups_of(subject)} == dict.fromkeys(others, 1)


def test_a_group_without_letters_is_removed(subject: Subject) -> None:
    job_id = kill(subject)
    before = counted(subject)

    subject.requeue(job_id)

    assert (before, groups_of(subject)) == ({BOOM.fingerprint: 1}, [])


def test_a_job_that_dies_again_is_counted_by_what_killed_it_last(subject: Subject) -> None:
    job_id = kill(subject)
    subject.requeue(job_id)

    subject.settle(subject.take(), Outcome.fail("hopeless", failure=_OTHER))

    assert counted(subject) == {_OTHER.fingerprint: 1}


def test_a_requeue_that_is_repeated_counts_once(subject: Subject) -> None:
    kill(subject)
    job_id = kill(subject)
    token = new_token()

    for _ in range(2):
        subject.requeue(job_id, token=token)

    assert counted(subject) == {BOOM.fingerprint: 1}


def test_a_purged_letter_leaves_its_group(subject: Subject) -> None:
    publish(subject, kill(subject))
    subject.advance(LATEST)
    kept = kill(subject)
    before = counted(subject)

    purge(subject)

    [group] = groups_of(subject)
    assert (before, group.count, group.sample) == ({BOOM.fingerprint: 2}, 1, kept)


def test_pruning_leaves_groups_alone(subject: Subject) -> None:
    subject.bring(Status.SUCCEEDED)
    subject.requeue(kill(subject))
    subject.settle(subject.take(), Outcome.ack())
    kill(subject)
    subject.advance(LATEST)

    prune(subject)

    assert counted(subject) == {BOOM.fingerprint: 1}


def test_groups_are_correct_after_any_number_of_roll_ups(subject: Subject) -> None:
    for n in range(4):
        job_id = kill(subject)
        subject.driver.maintenance.roll_up(keep=TEN_YEARS)
        if n % 2:
            subject.requeue(job_id, delay=timedelta(days=1))
            subject.driver.maintenance.roll_up(keep=TEN_YEARS)

    assert counted(subject) == {BOOM.fingerprint: 2}


def kill(subject: Subject, failure: Failure = BOOM, *, queue: str = "default", type: str = "greet") -> JobId:
    """Make one dead letter that failed with *failure*."""
    job_id = subject.insert(queue=queue, type=type)
    [claim] = subject.reserve(queue)
    subject.settle(claim, Outcome.fail("hopeless", failure=failure))
    return job_id


def groups_of(subject: Subject, *, limit: int = 10, queue: str | None = None) -> list[DeadLetterGroup]:
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)
    return subject.driver.inspector.dead_letter_groups(limit=limit, queue=queue)


def counted(subject: Subject) -> dict[str, int]:
    return {group.fingerprint: group.count for group in groups_of(subject)}
