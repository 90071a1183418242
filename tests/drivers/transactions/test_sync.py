"""Tests that jobs and outcomes join the transaction of a sync connection, for each supported library."""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.errors import LeaseMismatch
from taskharbor.core.ids import new_token
from taskharbor.core.model import Lease
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued, Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.drivers.unwrap import is_async, unwrap
from taskharbor.testing.conformance.subject import BOOM, new_job
from tests.support.joined_stores import postgres_store, sqlite_store
from tests.support.shops import SHOPS, Regret

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.joined_stores import Store
    from tests.support.shops import Shop

DEADLINE: Final = timedelta(seconds=5)
NO_WAIT: Final = timedelta(0)


@pytest.fixture(params=SHOPS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Iterator[Store]:
    with sqlite_store(tmp_path) if "lite" in kind.lower() else postgres_store() as made:
        yield made


@pytest.fixture
def shop(kind: str, store: Store) -> Iterator[Shop]:
    with SHOPS[kind](store.url) as opened:
        yield opened


def joined(store: Store, shop: Shop) -> Any:
    return store.driver.join(unwrap(shop.connection))


def test_a_job_is_there_with_the_order_once_the_shop_commits_and_not_before(store: Store, shop: Shop) -> None:
    job = new_job()

    answers = joined(store, shop).insert([job])
    shop.order()
    before = store.has(job), store.orders()
    shop.commit()

    assert answers == [Enqueued(job.id, existed=False)]
    assert before == (False, 0)
    assert (store.has(job), store.orders()) == (True, 1)


def test_a_job_is_discarded_if_the_shop_rolls_back(store: Store, shop: Shop) -> None:
    job = new_job(idempotency_key="order 1")

    shop.order()
    joined(store, shop).insert([job])
    shop.rollback()

    assert (store.has(job), store.orders()) == (False, 0)
    assert store.driver.inspector.find_by_key("order 1") == []


def test_a_savepoint_rolls_back_only_its_own_jobs(store: Store, shop: Shop) -> None:
    before, within, after = new_job(), new_job(), new_job()

    joined(store, shop).insert([before])
    with suppress(Regret), shop.savepoint():
        joined(store, shop).insert([within])
        raise Regret
    joined(store, shop).insert([after])
    shop.commit()

    assert [store.has(job) for job in (before, within, after)] == [True, False, True]


def test_a_listener_is_notified_when_the_shop_commits_and_not_before(store: Store, shop: Shop) -> None:
    with closing(store.driver.listen(["default"])) as listener:
        joined(store, shop).insert([new_job()])
        before = bool(listener.wait(NO_WAIT))
        shop.commit()

        assert (before, bool(listener.wait(DEADLINE))) == (False, True)


def test_an_outcome_is_recorded_with_the_order_once_the_shop_commits(store: Store, shop: Shop) -> None:
    claim = store.take()

    shop.order()
    answers = joined(store, shop).settle([Settlement(claim.lease, Outcome.ack(b"1"))])
    before = store.status(claim), store.orders()
    shop.commit()

    assert answers == [Settled(claim.job.id, Status.SUCCEEDED)]
    assert before == (Status.PROCESSING, 0)
    assert (store.status(claim), store.orders()) == (Status.SUCCEEDED, 1)


def test_an_outcome_is_discarded_if_the_shop_rolls_back(store: Store, shop: Shop) -> None:
    claim = store.take()
    settlement = Settlement(claim.lease, Outcome.fail("hopeless", failure=BOOM))

    joined(store, shop).settle([settlement])
    shop.rollback()

    assert store.status(claim) is Status.PROCESSING
    assert store.driver.inspector.attempts([claim.job.id]) == []
    assert store.driver.settle([settlement]) == [Settled(claim.job.id, Status.DEAD)]


def test_a_job_settled_in_the_shops_transaction_is_settled_for_the_worker(store: Store, shop: Shop) -> None:
    claim = store.take()
    settlement = Settlement(claim.lease, Outcome.ack())
    joined(store, shop).settle([settlement])
    shop.commit()

    assert store.driver.settle([settlement]) == [Settled(claim.job.id, Status.SUCCEEDED)]


def test_a_wrong_token_settles_nothing_and_the_transaction_continues(store: Store, shop: Shop) -> None:
    claim = store.take()
    stolen = Lease(claim.job.id, new_token(), claim.lease.expires_at)
    outcomes = [Outcome.ack(), Outcome.retry(after=NO_WAIT, failure=BOOM)]

    answers = [joined(store, shop).settle([Settlement(stolen, outcome)]) for outcome in outcomes]
    shop.order()
    shop.commit()

    assert [[type(answer) for answer in each] for each in answers] == [[LeaseMismatch], [LeaseMismatch]]
    assert (store.status(claim), store.orders()) == (Status.PROCESSING, 1)
    assert store.driver.inspector.attempts([claim.job.id]) == []


def test_a_job_released_in_the_shops_transaction_notifies_on_commit(store: Store, shop: Shop) -> None:
    claim = store.take("a queue without listeners")

    with closing(store.driver.listen(["default"])) as listener:
        joined(store, shop).settle([Settlement(claim.lease, Outcome.release())])
        before = bool(listener.wait(NO_WAIT))
        shop.commit()

        assert (before, bool(listener.wait(DEADLINE))) == (False, True)


def test_a_sync_connection_is_recognized(shop: Shop) -> None:
    assert not is_async(shop.connection)
