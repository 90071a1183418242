"""TaskHarbor on a database without the newest migration, and while that is applied.

Code is deployed before its migration, so it must work on both schemas. The driver contract is tested on the
previous schema by `tests/conformance/test_previous_schema.py`.
"""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from taskharbor import Harbor, RetryPolicy, Status
from taskharbor.api import server
from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.core.ids import new_token
from taskharbor.core.retry import Fixed
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres.schema import MIGRATIONS
from tests.support.api_rig import bearer, opened
from tests.support.postgres import NEWEST, PREVIOUS, database, schema_at
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.ids import JobId
    from taskharbor.tasks import Handle

LONG = timedelta(seconds=20)
SOON = RetryPolicy(backoff=Fixed(0.001))


@pytest.fixture
def url() -> Iterator[str]:
    with database(version=PREVIOUS) as made:
        yield made


class Shop:
    """A harbor with tasks that succeed, succeed at the second attempt, fail, or end when the test says so."""

    def __init__(self, url: str) -> None:
        self.harbor = Harbor(url)
        self.may_end = threading.Event()
        tries: list[int] = []

        @self.harbor.task(retry=SOON, max_attempts=2)
        def add(one: int, other: int) -> int:
            return one + other

        @self.harbor.task(retry=SOON, max_attempts=2)
        def stumble() -> str:
            tries.append(1)
            if len(tries) == 1:
                raise LookupError
            return "second attempt"

        @self.harbor.task(retry=SOON, max_attempts=2)
        async def fail() -> None:
            raise LookupError

        @self.harbor.task(retry=SOON, max_attempts=2)
        def wait() -> str:
            assert self.may_end.wait(30)
            return "waited"

        self.add, self.stumble, self.fail, self.wait = add, stumble, fail, wait

    def status(self, handle: Handle[Any]) -> Status:
        return handle.job().status

    @contextmanager
    def working(self, **options: Any) -> Iterator[Any]:
        worker = self.harbor.worker(lease=timedelta(seconds=1), poll=timedelta(milliseconds=50), **options)
        worker.start()
        try:
            yield worker
        finally:
            self.may_end.set()
            worker.stop()


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    shop = Shop(url)
    with closing(shop.harbor):
        yield shop


def test_jobs_run_retry_and_die_on_the_previous_schema(shop: Shop) -> None:
    with shop.working() as worker:
        added = shop.add.enqueue(1, 2)
        first, again = [shop.add.using(idempotency_key="k").enqueue(3, 4) for _ in range(2)]
        many = shop.harbor.enqueue_many([shop.add.call(n, n) for n in range(1_200)])  # by COPY
        stumbled, failed, waiting = shop.stumble.enqueue(), shop.fail.enqueue(), shop.wait.enqueue()

        assert (added.result(timeout=20), first.result(timeout=20), again.existed) == (3, 7, True)
        assert many[-1].result(timeout=20) == 2_398
        assert stumbled.result(timeout=20) == "second attempt"
        wait_until(lambda: shop.status(failed) is Status.DEAD)
        wait_until(lambda: [each.id for each in shop.harbor.driver.inspector.workers()] == [worker.id])
        held = waiting.job().lease_expires_at
        wait_until(lambda: waiting.job().lease_expires_at != held)  # the heartbeat extended it
        shop.may_end.set()
        assert waiting.result(timeout=20) == "waited"

    [outbox] = shop.harbor.driver.inspector.outbox([failed.id])
    assert outbox.event.job_id == failed.id


def test_operator_actions_work_on_the_previous_schema(shop: Shop) -> None:
    driver = shop.harbor.driver
    dead = shop.fail.enqueue()
    shop.harbor.worker().drain(LONG)
    canceled, later = shop.add.enqueue(1, 1), shop.add.enqueue(1, 1)

    driver.cancel([canceled.id])
    driver.reschedule([later.id], delay=timedelta(hours=1))
    moved = driver.requeue([dead.id], token=new_token(), budget=1, by="ops", reason="fixed", payload=b'{"n": 1}')
    driver.control.pause(["default"], by="ops")
    driver.control.resume(["default"])
    driver.maintenance.roll_up(keep=timedelta(days=1))
    driver.maintenance.prune(older_than=timedelta(days=1), limit=10)  # the conformance kit checks what is removed

    assert [getattr(each, "status", each) for each in moved] == [Status.PENDING]
    assert [view.name for view in driver.inspector.queues()] == ["default"]
    assert driver.inspector.dead_letter_groups(limit=10) is not None


def test_schedules_fire_on_the_previous_schema(shop: Shop) -> None:
    shop.harbor.schedule("* * * * *", name="often")(shop.stumble)
    scheduler = shop.harbor.scheduler()
    scheduler.put(shop.harbor.schedules.values())
    made = scheduler.run_now("often")
    scheduler.tick()

    assert shop.harbor.driver.inspector.get([made.id])[made.id].type == "stumble"
    assert [*shop.harbor.driver.inspector.schedules()] == ["often"]


def test_a_transaction_is_joined_on_the_previous_schema(shop: Shop, url: str) -> None:
    with psycopg.connect(url) as db:
        handle = shop.add.using(connection=db).enqueue(1, 2)
    shop.harbor.worker().drain(LONG)

    assert handle.result(timeout=20) == 3


def test_the_api_works_on_the_previous_schema(shop: Shop) -> None:
    with opened(shop.harbor.driver, needs_keys=True) as site:
        key = bearer(site.key("admin"))
        created = site.post("/v1/jobs", {"type": "add", "payload": {"one": 1, "other": 2}}, headers=key)
        job_id = created.json()["id"]
        paths = ["/v1/jobs", f"/v1/jobs/{job_id}", "/v1/queues", "/v1/workers", "/v1/schedules", "/v1/stats", "/readyz"]
        answers = {path: site.get(path, headers=key).status_code for path in paths}

        assert created.status_code == 201
        assert answers == dict.fromkeys(paths, 200)
        assert site.get("/v1/jobs").status_code == 401


def test_the_commands_work_on_the_previous_schema(shop: Shop, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[object] = []
    monkeypatch.setattr(server.ApiServer, "run", lambda self, **_: served.append(self))
    job_id: JobId = shop.add.enqueue(1, 2).id
    commands = [
        ["enqueue", "add", "one=1", "other=2"],
        ["jobs", "list"],
        ["jobs", "show", str(job_id)],
        ["jobs", "cancel", str(job_id)],
        ["jobs", "requeue", str(job_id), "--payload", '{"one": 2, "other": 2}'],
        ["dead", "groups"],
        ["queues", "list"],
        ["workers", "list"],
        ["stats"],
        ["keys", "create", "ci", "--scope", "admin"],
        ["keys", "list"],
        ["codec", "show"],
        ["schedules", "list"],
        ["prune", "--older-than", "1d", "--yes"],
        ["migrate", "status"],
        ["api", "--port", "0"],
    ]

    codes = {" ".join(each): run(cli, [*each, "--url", url]) for each in commands}

    assert codes == dict.fromkeys(codes, ExitCode.OK)
    assert len(served) == 1


def test_a_worker_keeps_running_while_the_newest_migration_is_applied(
    shop: Shop, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskharbor.worker.heartbeats.WORKER_HEARTBEAT", timedelta(milliseconds=200))
    with shop.working() as worker:
        before = shop.add.enqueue(1, 1)
        assert before.result(timeout=20) == 2
        running = shop.wait.enqueue()
        wait_until(lambda: shop.status(running) is Status.PROCESSING)

        migrate.migrate_up(schema_at(url), MIGRATIONS)

        # A process that starts now sees the new schema; the worker keeps the version it read at its start.
        newcomer = Shop(url)
        with closing(newcomer.harbor):
            after = [newcomer.add.enqueue(n, n) for n in range(20)]
            mine = shop.add.enqueue(5, 5)
            assert [each.result(timeout=20) for each in after] == [2 * n for n in range(20)]
            assert mine.result(timeout=20) == 10
            assert newcomer.harbor.driver.inspector.settings() == {"codec": "json"}
        held = running.job().lease_expires_at
        wait_until(lambda: running.job().lease_expires_at != held)
        seen = {each.id: each.seen_at for each in shop.harbor.driver.inspector.workers()}[worker.id]
        wait_until(lambda: {e.id: e.seen_at for e in shop.harbor.driver.inspector.workers()}[worker.id] != seen)
        shop.may_end.set()
        assert running.result(timeout=20) == "waited"
    assert schema_at(url).version() == NEWEST
