"""Tests of settling on SQLite with data that it cannot store."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from taskharbor.core.errors import OutcomeNotStorable
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.testing.conformance.subject import BOOM, LEASE, OVERDUE_AFTER, new_job

if TYPE_CHECKING:
    from pathlib import Path


def test_an_unstorable_outcome_is_reported_and_the_others_are_recorded(tmp_path: Path) -> None:
    with closing(SqliteDriver(tmp_path / "jobs.db")) as driver:
        driver.insert([new_job() for _ in range(6)])
        claims = driver.reserve(
            "default", token=new_token(), worker="w", lease=LEASE, limit=6, overdue_after=OVERDUE_AFTER
        )
        outcomes = [Outcome.ack(b"1"), Outcome.retry(after=LEASE, failure=BOOM)] * 3
        outcomes[3] = Outcome.release(bound=2**70)

        answers = driver.settle([Settlement(claim.lease, each) for claim, each in zip(claims, outcomes, strict=True)])
        left = driver.inspector.get([claims[3].job.id])[claims[3].job.id]

    assert [type(answer) for answer in answers] == [Settled] * 3 + [OutcomeNotStorable] + [Settled] * 2
    assert left.status is Status.PROCESSING
