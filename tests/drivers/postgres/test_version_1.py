"""Worker records on schema version 1: code is deployed before its migration."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import Final

from taskharbor.core.model import WorkerRecord
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import MIGRATIONS
from tests.support.postgres import database, schema_at

RECORD: Final = WorkerRecord(
    id="w",
    host="h",
    pid=1,
    queues=("default",),
    types=("greet",),
    concurrency=4,
    started_at=datetime(2030, 1, 1, tzinfo=UTC),
    lost_slots=2,
)


def test_a_worker_is_recorded_without_its_lost_slots_before_the_migration_and_with_them_after() -> None:
    with database(migrated=False) as url:
        migrate.migrate_up(schema_at(url), MIGRATIONS[:1])
        with closing(PostgresDriver(url)) as driver:
            driver.maintenance.record_worker(RECORD)
            driver.maintenance.record_worker(RECORD)
            [before] = driver.inspector.workers()
        migrate.migrate_up(schema_at(url), MIGRATIONS)
        with closing(PostgresDriver(url)) as driver:
            driver.maintenance.record_worker(RECORD)
            [after] = driver.inspector.workers()

    assert (before.id, before.lost_slots) == ("w", 0)
    assert (after.id, after.lost_slots) == ("w", 2)
