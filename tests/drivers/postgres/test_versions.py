"""API keys on the previous schema version, which has no column for their last use."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from taskharbor.api_keys import issue_key
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import MIGRATIONS
from tests.support.postgres import database, schema_at

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def driver() -> Iterator[PostgresDriver]:
    with database(migrated=False) as url:
        migrate.migrate_up(schema_at(url), MIGRATIONS[:1])
        with closing(PostgresDriver(url)) as driver:
            yield driver


def test_keys_work_without_a_column_for_their_last_use(driver: PostgresDriver) -> None:
    key = issue_key("ci", ["admin"], now=datetime(2030, 1, 1, tzinfo=UTC)).key

    driver.control.add_keys([key])
    driver.control.note_key_use([key.id])

    assert driver.inspector.keys() == {key.id: key}
    assert driver.control.revoke_keys([key.id]) == [True]
