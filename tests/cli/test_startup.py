"""How services start: on a store without tables, one that is away, and one that refuses them."""

from __future__ import annotations

import logging
import signal
import subprocess
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NoReturn

import psycopg
import pytest
from psycopg import conninfo

from taskharbor import Harbor, MemoryDriver
from taskharbor.cli.errors import StoreAway
from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.cli.startup import prepare_store
from taskharbor.core.errors import SchemaOutOfDate, StoreRefused, StoreUnavailable
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres.schema import MIGRATIONS
from tests.support.cli_processes import LIMIT_SECONDS, PYTHON
from tests.support.postgres import database, schema_at
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APP: Final = "handlers = {'greet': print}"
ENVIRON: Final = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}
SERVICES: Final = {
    "worker": ["worker", "shop.py"],
    "janitor": ["janitor"],
    "enqueuer": ["enqueuer"],
    "api": ["api", "--port", "0"],
}
MIGRATE: Final = "run 'taskharbor migrate up', or pass --migrate"
STARTED: Final = {
    "worker": "greet",
    "janitor": " started",
    "enqueuer": " started",
    "api": "API listening",
}


class Service(subprocess.Popen[bytes]):
    stderr_file: Path

    def log(self) -> str:
        return self.stderr_file.read_text()

    def lines(self, level: str) -> list[str]:
        return [line for line in self.log().splitlines() if f" {level} " in line]


@contextmanager
def started(folder: Path, *words: str) -> Iterator[Service]:
    (folder / "shop.py").write_text(APP)
    with (folder / "stderr").open("wb") as stderr:
        process = Service([*PYTHON, "-m", "taskharbor.cli", *words], cwd=folder, stderr=stderr, env=ENVIRON)
    process.stderr_file = folder / "stderr"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ended(folder: Path, *words: str) -> tuple[int, str]:
    """Run a service that ends by itself; return its exit code and what it printed."""
    with started(folder, *words) as service:
        return service.wait(LIMIT_SECONDS), service.log()


@pytest.fixture
def bare() -> Iterator[str]:
    with database(migrated=False) as url:
        yield url


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_on_a_store_without_tables_ends_with_9_and_one_line(service: str, bare: str, tmp_path: Path) -> None:
    code, log = ended(tmp_path, *SERVICES[service], "--url", bare)

    assert (code, log) == (
        ExitCode.SCHEMA_OUT_OF_DATE,
        f"error: the store has no TaskHarbor tables yet: {MIGRATE}\n",
    )


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_migrates_its_store_if_asked(service: str, bare: str, tmp_path: Path) -> None:
    with started(tmp_path, *SERVICES[service], "--url", bare, "--migrate") as process:
        wait_until(lambda: STARTED[service] in process.log())
    migrate.check_schema(schema_at(bare), MIGRATIONS)
    assert [migration.name for migration in MIGRATIONS if f"applied migration {migration.name}" in process.log()] == [
        migration.name for migration in MIGRATIONS
    ]
    assert "Traceback" not in process.log()


def test_a_store_that_is_newer_than_the_code_is_not_migrated(tmp_path: Path) -> None:
    with database() as url:
        with psycopg.connect(url) as db:
            db.execute("INSERT INTO th_migrations VALUES (99, '0099_later', now())")

        code, log = ended(tmp_path, *SERVICES["worker"], "--url", url, "--migrate")

    assert code == ExitCode.SCHEMA_OUT_OF_DATE
    assert log == f"error: the store's schema is 99, this code needs {len(MIGRATIONS)}: update TaskHarbor\n"


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_whose_store_is_away_ends_with_3_and_one_line(service: str, tmp_path: Path) -> None:
    code, log = ended(tmp_path, *SERVICES[service], "--url", "postgresql://postgres@127.0.0.1:1/shop")

    assert code == ExitCode.CANNOT_CONNECT
    assert log.startswith("error: store unavailable: database 'shop' on 127.0.0.1: connection refused")
    assert log.endswith("; start it, or pass --wait to wait for it\n")
    assert log.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dbname": "nowhere"}, "database 'nowhere' on 127.0.0.1: this database does not exist; create it, or"),
        ({"user": "no_such_user"}, "this user does not exist or may not connect; check its name and pg_hba.conf"),
    ],
)
def test_a_store_that_refuses_a_worker_ends_it_although_it_may_wait(
    change: dict[str, str], reason: str, bare: str, tmp_path: Path
) -> None:
    code, log = ended(tmp_path, *SERVICES["worker"], "--url", url_of(bare, **change), "--wait")

    assert code == ExitCode.CANNOT_CONNECT
    assert log.startswith("error: store unavailable: ")
    assert reason in log
    assert log.count("\n") == 1


def test_a_file_that_is_not_a_database_ends_a_worker_although_it_may_wait(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_text("once upon a time " * 100)

    code, log = ended(tmp_path, *SERVICES["worker"], "--url", "sqlite:///jobs.db", "--wait")

    assert code == ExitCode.CANNOT_CONNECT
    assert log == "error: store unavailable: jobs.db: not a SQLite database (file is not a database)\n"


def test_a_worker_that_may_wait_logs_the_outage_once_and_starts_when_it_ends(tmp_path: Path) -> None:
    with database() as url, Proxy(url) as proxy:
        proxy.refuse()
        with started(tmp_path, *SERVICES["worker"], "--url", url_of(proxy.url), "--wait") as worker:
            wait_until(lambda: "store unavailable; waiting for it: " in worker.log())
            proxy.accept()

            wait_until(lambda: STARTED["worker"] in worker.log())

            assert len(worker.lines("WARNING")) == 1
            assert "store available; starting" in worker.lines("INFO")[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_worker_that_waits_for_its_store(number: signal.Signals, tmp_path: Path) -> None:
    words = [*SERVICES["worker"], "--url", "postgresql://postgres@127.0.0.1:1/shop", "--wait"]
    with started(tmp_path, *words) as worker:
        wait_until(lambda: "waiting for it: " in worker.log())

        worker.send_signal(number)

        assert worker.wait(LIMIT_SECONDS) == 0
    assert worker.log().count("\n") == 1


READING: Final = [
    "jobs list", "jobs show ID", "jobs why ID", "jobs cancel ID", "dead list", "dead groups", "queues list",
    "schedules list", "workers list", "stats", "keys list", "codec show", "prune --yes", "enqueue greet",
]  # fmt: skip


@pytest.mark.usefixtures("_in_a_folder")
@pytest.mark.parametrize("command", READING)
def test_a_command_does_not_create_a_file_that_may_be_mistyped(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(cli, [*command.split(), "--url", "sqlite:///typo.db"])

    assert code == ExitCode.CANNOT_CONNECT
    assert capsys.readouterr().err == (
        f"error: there is no file {tmp_path}/typo.db; check the URL, or create the store: "
        "taskharbor migrate up --url sqlite:///typo.db\n"
    )
    assert [*tmp_path.iterdir()] == []


@pytest.mark.usefixtures("_in_a_folder")
def test_migrate_creates_a_store_and_so_does_enqueue_for_that_of_the_environment_and_of_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(cli, ["migrate", "up", "--url", "sqlite:///one.db"]) == ExitCode.OK
    monkeypatch.setenv("TASKHARBOR_URL", "sqlite:///two.db")
    assert run(cli, ["enqueue", "greet"]) == ExitCode.OK
    monkeypatch.delenv("TASKHARBOR_URL")
    (tmp_path / "tasks.py").write_text("from taskharbor import Harbor\nharbor = Harbor('sqlite:///three.db')")
    assert run(cli, ["enqueue", "greet"]) == ExitCode.OK

    assert {file.name for file in tmp_path.glob("*.db")} == {"one.db", "two.db", "three.db"}


@pytest.mark.usefixtures("_in_a_folder")
@pytest.mark.parametrize("command", [*READING, *map(" ".join, SERVICES.values()), "dev shop.py"])
def test_a_command_refuses_the_memory_store_with_the_reason(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "shop.py").write_text(APP)

    code = run(cli, [*command.split(), "--url", "memory://"])

    assert code == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "error: memory:// is the memory of a single process: this command shares no jobs with any other; "
        "name a store that processes share, such as sqlite:///jobs.db or postgresql://localhost/app\n"
    )


class MigratingDriver(MemoryDriver):
    """A store without tables, until it is migrated."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._pending = [name]
        self.inspector.now = self._now  # type: ignore[method-assign]

    def migrate(self) -> list[str]:
        applied, self._pending = self._pending, []
        return applied

    def _now(self) -> datetime:
        if self._pending:
            raise SchemaOutOfDate("0", "1", migrate.RUN_MIGRATIONS)
        return datetime.now(UTC)


def test_migrations_are_applied_and_logged_only_if_asked(caplog: pytest.LogCaptureFixture) -> None:
    driver = MigratingDriver("0001_foundation")
    with pytest.raises(SchemaOutOfDate, match=f"{MIGRATE}$"):
        prepare_store(Harbor(driver), "worker", migrate=False, wait=True)

    with caplog.at_level(logging.INFO):
        prepare_store(Harbor(driver), "worker", migrate=True, wait=False)

    assert [record.getMessage() for record in caplog.records] == ["applied migration 0001_foundation"]


def test_a_store_that_is_away_is_tried_again_with_two_log_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taskharbor.cli.startup.RETRY_SECONDS", 0.001)
    failures: list[Exception] = [StoreUnavailable(f"unplugged {number}") for number in range(3)]

    monkeypatch.setattr(Harbor, "driver", property(lambda _: raise_last(failures) if failures else MemoryDriver()))

    with caplog.at_level(logging.INFO):
        prepare_store(Harbor(), "worker", migrate=True, wait=True)

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "store unavailable; waiting for it: unplugged 2"),
        ("INFO", "store available; starting"),
    ]


@pytest.mark.parametrize(
    ("error", "wait", "raised"),
    [(StoreUnavailable("unplugged"), False, StoreAway), (StoreRefused("wrong password"), True, StoreRefused)],
)
def test_a_store_is_not_tried_again_without_wait_or_if_it_refuses(
    error: Exception, wait: bool, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [error]
    monkeypatch.setattr(Harbor, "driver", property(lambda _: raise_last(failures)))

    with pytest.raises(raised):
        prepare_store(Harbor(), "worker", migrate=False, wait=wait)


def raise_last(errors: list[Exception]) -> NoReturn:
    raise errors.pop()


def url_of(address: str, **change: str) -> str:
    """Return an address as a URL, without encryption."""
    parts = conninfo.conninfo_to_dict(address) | change
    return f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}?sslmode=disable"
