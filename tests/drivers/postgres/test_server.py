"""The PostgreSQL server of the tests, with real processes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from taskharbor.testing.postgres import PostgresNotFound, PostgresServer, ServerNotStarted, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_SECONDS: Final = 60.0  # far more than any wait here takes

# The process is killed before it leaves the block.
HOLDER: Final = """
import sys
from pathlib import Path
from taskharbor.testing.postgres import PostgresServer

with PostgresServer.start(Path(sys.argv[1])):
    print("started", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer.start(tmp_path_factory.mktemp("server")) as server:
        yield server


def test_a_started_server_answers_and_knows_its_version(server: PostgresServer) -> None:
    with psycopg.connect(server.url) as connection:
        assert connection.info.server_version == server.version


def test_a_database_is_a_copy_of_its_template(server: PostgresServer) -> None:
    with psycopg.connect(server.database("original")) as connection:
        connection.execute("CREATE TABLE berths AS SELECT 7 AS number")

    copy = server.database("a copy / of it", template="original")

    assert numbers(copy) == [7]


def test_a_database_is_dropped_while_it_is_in_use(server: PostgresServer) -> None:
    url = server.database("doomed")

    with psycopg.connect(url):
        server.drop("doomed")

    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_what_was_committed_survives_a_crash(tmp_path: Path) -> None:
    with PostgresServer.start(tmp_path, durable=True) as server, closing(psycopg.connect(server.url)) as crashed:
        crashed.execute("CREATE TABLE berths AS SELECT 7 AS number")
        crashed.commit()
        crashed.execute("INSERT INTO berths VALUES (8)")

        server.kill()
        server.restart()

        assert numbers(server.url) == [7]
        assert setting(server, "fsync") == "on"


def test_a_server_that_need_not_be_durable_does_not_wait_for_the_disk(server: PostgresServer) -> None:
    assert setting(server, "fsync") == "off"


def test_a_stopped_server_starts_again_with_the_same_url_and_settings(tmp_path: Path) -> None:
    server = PostgresServer.start(tmp_path, settings={"max_connections": "17"})
    server.stop()
    server.stop()

    server.restart()

    assert setting(server, "max_connections") == "17"
    server.stop()


def test_a_server_that_cannot_start_reports_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ServerNotStarted, match='parameter "shared_buffers": "plenty"'):
        PostgresServer.start(tmp_path, settings={"shared_buffers": "plenty"})


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a process when its parent dies")
def test_a_server_ends_when_its_process_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "started\n"
        lock = tmp_path / "data" / "postmaster.pid"
        postmaster = os.pidfd_open(int(lock.read_text("utf-8").splitlines()[0]))

        holder.kill()

        ended, _, _ = select.select([postmaster], [], [], LIMIT_SECONDS)
        os.close(postmaster)
        assert ended
        assert not lock.exists()


def test_the_environment_may_name_the_programs() -> None:
    assert binaries({"PG_BINDIR": str(binaries())}) == binaries()


def test_a_folder_without_the_programs_is_rejected_with_the_fixes(tmp_path: Path) -> None:
    with pytest.raises(PostgresNotFound, match=rf"{tmp_path}.*\[embedded\].*PG_BINDIR"):
        PostgresServer.start(tmp_path / "server", bindir=tmp_path)

    with pytest.raises(PostgresNotFound, match=str(tmp_path)):
        binaries({"PG_BINDIR": str(tmp_path)})


def numbers(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM berths ORDER BY number")]


def setting(server: PostgresServer, name: str) -> str:
    with psycopg.connect(server.url) as connection:
        row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
        return str(row and row[0])
