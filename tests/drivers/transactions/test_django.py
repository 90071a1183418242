"""Tests that jobs and outcomes join Django's atomic() transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.django_shop import django_address, facts_of
from tests.support.joined_stores import postgres_store, sqlite_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    Facts = dict[str, Any]


@pytest.fixture(scope="module", params=["postgresql", "sqlite3"])
def facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Facts]:
    """Return the results of all scenarios of a shop."""
    engine = {"ENGINE": f"django.db.backends.{request.param}"}
    if request.param == "sqlite3":
        with sqlite_store(tmp_path_factory.mktemp("shop")) as store:
            yield facts_of(store.url, engine | {"NAME": store.url.removeprefix("sqlite:///")})
    else:
        with postgres_store() as store:
            yield facts_of(store.url, engine | django_address(store.url))


def test_a_job_is_there_with_the_order_after_atomic_and_not_before(facts: Facts) -> None:
    assert facts["commits"] == [False, True, 1]


def test_a_job_is_discarded_if_atomic_ends_with_an_error(facts: Facts) -> None:
    assert facts["rolls_back"] == [False, 0]


def test_an_inner_atomic_rolls_back_only_its_own_jobs(facts: Facts) -> None:
    assert facts["regrets"] == [True, False]


def test_an_outcome_is_recorded_after_atomic_and_not_before(facts: Facts) -> None:
    assert facts["settles"] == ["PROCESSING", "SUCCEEDED"]


def test_a_listener_is_notified_after_atomic_and_not_before(facts: Facts) -> None:
    assert facts["notifies"] == [False, True]


def test_outside_of_atomic_there_is_nothing_to_join(facts: Facts) -> None:
    assert facts["is_outside"].startswith("connection is Django's, outside atomic(): use it inside 'with tra")


def test_what_only_looks_like_djangos_connection_is_refused(facts: Facts) -> None:
    assert facts["gives_its_cache"].startswith("connection is a django.utils.connection.ConnectionProxy: pass a psyco")
