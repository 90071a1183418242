"""Many jobs at once, from the requests to the rows."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from taskharbor import Client, JobRequest, JsonCodec
from taskharbor.core.errors import InvalidRequest
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.inserting import COPIED
from tests.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator

ABSENT = "postgresql://postgres@127.0.0.1:1/postgres?connect_timeout=1"


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def driver(url: str) -> Iterator[PostgresDriver]:
    """With one connection: whoever keeps it, or asks for another meanwhile, is found out."""
    with closing(PostgresDriver(url, size=1)) as driver:
        yield driver


def stored(url: str) -> list[Any]:
    with psycopg.connect(url) as db:
        return db.execute("SELECT payload, metadata FROM th_jobs ORDER BY id").fetchall()


def test_a_payload_that_cannot_be_encoded_stops_all_the_jobs_before_it(driver: PostgresDriver, url: str) -> None:
    client, good = Client(driver), [JobRequest(type="greet", payload=n) for n in range(2 * COPIED)]

    with pytest.raises(InvalidRequest) as refused:
        client.enqueue_many([*good, JobRequest(type="greet", payload={"at": object()})])

    assert [problem.field for problem in refused.value.problems] == [f"jobs[{2 * COPIED}].payload.at"]
    assert stored(url) == []
    assert len(client.enqueue_many(good)) == len(stored(url)) == 2 * COPIED


def test_a_request_that_breaks_a_rule_is_refused_before_the_store_is_asked() -> None:
    requests = [JobRequest(type="greet")] * COPIED

    with (
        closing(PostgresDriver(ABSENT)) as driver,
        pytest.raises(InvalidRequest, match=rf"jobs\[{COPIED}\]\.priority"),
    ):
        Client(driver).enqueue_many([*requests, JobRequest(type="greet", priority=10**6)])


def test_plain_jobs_and_others_keep_their_order_and_all_they_have(driver: PostgresDriver, url: str) -> None:
    special = {COPIED: {"tag": "a"}, COPIED + 2: {"tag": "b"}}
    requests = [JobRequest(type="greet", payload=n, metadata=special.get(n, {})) for n in range(2 * COPIED)]

    answers = Client(driver).enqueue_many(requests)

    assert stored(url) == [(str(n).encode(), special.get(n, {})) for n in range(2 * COPIED)]
    assert [answer.id for answer in answers] == sorted(answer.id for answer in answers)


class Curious(JsonCodec):
    """Looks into the store for each payload, as one might that reads its keys from there."""

    def __init__(self, driver: PostgresDriver) -> None:
        super().__init__()
        self._driver = driver

    def encode(self, value: object, *, context: bytes) -> bytes:
        self._driver.inspector.now()
        return super().encode(value, context=context)


def test_a_codec_of_the_users_is_done_before_a_connection_is_taken(driver: PostgresDriver, url: str) -> None:
    client = Client(driver, codec=Curious(driver))

    client.enqueue_many([JobRequest(type="greet", payload=n) for n in range(COPIED)])

    assert len(stored(url)) == COPIED
