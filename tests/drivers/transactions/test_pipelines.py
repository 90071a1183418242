"""Tests that jobs and outcomes join a transaction of psycopg in pipeline mode, which keeps back answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg
import pytest

from taskharbor.core.errors import IdempotencyConflict
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued, Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.testing.conformance.subject import new_job
from tests.support.joined_stores import postgres_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.model import NewJob
    from taskharbor.drivers.base import SettleAnswer
    from tests.support.joined_stores import Store

KEY = "order 1"


@pytest.fixture
def store() -> Iterator[Store]:
    with postgres_store() as made:
        yield made


def _jobs() -> tuple[NewJob, NewJob]:
    return new_job(idempotency_key=KEY, digest=b"1"), new_job(idempotency_key=KEY, digest=b"2")


def test_a_pipeline_of_a_sync_connection_can_be_joined(store: Store) -> None:
    first, other = _jobs()
    claim = store.take("side")
    settlement = Settlement(claim.lease, Outcome.ack())

    with psycopg.connect(store.url) as db, db.pipeline():
        joined = store.driver.join(db)
        answers = [*joined.insert([first]), *joined.insert([other])]
        settled = joined.settle([settlement])
        before = store.has(first), store.status(claim)

    _check(store, first, answers, settled)
    assert before == (False, Status.PROCESSING)
    assert store.status(claim) is Status.SUCCEEDED


def test_a_pipeline_of_an_async_connection_can_be_joined(store: Store) -> None:
    first, other = _jobs()
    settlement = Settlement(store.take("side").lease, Outcome.ack())

    async def run() -> tuple[list[Enqueued | IdempotencyConflict], list[SettleAnswer]]:
        async with await psycopg.AsyncConnection.connect(store.url) as db, db.pipeline():
            joined = store.driver.ajoin(db)
            answers = [*await joined.insert([first]), *await joined.insert([other])]
            return answers, await joined.settle([settlement])

    _check(store, first, *asyncio.run(run()))


def _check(
    store: Store, first: NewJob, answers: list[Enqueued | IdempotencyConflict], settled: list[SettleAnswer]
) -> None:
    inserted, conflict = answers
    assert store.has(first)
    assert inserted == Enqueued(first.id, existed=False)
    assert isinstance(conflict, IdempotencyConflict)
    assert [each.status for each in settled if isinstance(each, Settled)] == [Status.SUCCEEDED]
