"""Tests that searches use an index: matching jobs are found on the first page, however many others are newer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.core.outcome import Outcome
from taskharbor.core.results import JobFilter, Settlement, scan_limit
from taskharbor.core.states import Status
from taskharbor.testing.conformance.subject import BOOM, LEASE, Subject, new_job
from tests.conformance import test_drivers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.core.ids import JobId

PAGE: Final = 10
BATCH: Final = 1_000


@pytest.fixture(params=["sqlite", "postgres"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    made = test_drivers.sqlite(tmp_path) if request.param == "sqlite" else test_drivers.postgres()
    yield made
    made.driver.close()


def test_dead_letters_are_found_behind_any_number_of_newer_jobs(subject: Subject) -> None:
    letters = [subject.bring(Status.DEAD) for _ in range(2)]
    insert_many(subject)

    assert found(subject, JobFilter(statuses=frozenset({Status.DEAD}))) == letters[::-1]


def test_jobs_in_process_are_found_behind_any_number_of_newer_jobs(subject: Subject) -> None:
    running = [subject.bring(Status.PROCESSING) for _ in range(2)]
    insert_many(subject)

    assert found(subject, JobFilter(statuses=frozenset({Status.PROCESSING}))) == running[::-1]


def test_dead_letters_of_one_error_are_found_behind_any_number_of_others(subject: Subject) -> None:
    letter = subject.bring(Status.DEAD)
    insert_many(subject)
    settle_all(subject, Outcome.fail("hopeless"))

    assert found(subject, JobFilter(queue="default", type="greet", fingerprint=BOOM.fingerprint)) == [letter]


def test_waiting_jobs_are_found_behind_any_number_of_finished_jobs(subject: Subject) -> None:
    waiting = subject.insert(delay=LEASE)
    insert_many(subject)
    settle_all(subject, Outcome.ack())

    assert found(subject, JobFilter(statuses=frozenset({Status.PENDING}))) == [waiting]


def insert_many(subject: Subject) -> None:
    """Store more jobs than one page scans."""
    subject.driver.insert([new_job() for _ in range(2 * scan_limit(PAGE))])


def settle_all(subject: Subject, outcome: Outcome) -> None:
    """Settle all of them, in batches: each statement has a timeout of five seconds."""
    while claims := subject.reserve(limit=BATCH):
        subject.driver.settle([Settlement(claim.lease, outcome) for claim in claims])


def found(subject: Subject, wanted: JobFilter) -> list[JobId]:
    """Return the first page, which must be the last one."""
    page = subject.driver.inspector.find(wanted, limit=PAGE)
    assert page.after is None
    return [job.id for job in page.jobs]
