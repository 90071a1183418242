"""Tests of settings in the SQL stores: several processes, joined transactions, lost replies, an older schema."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from taskharbor import Client, JobRequest, JsonCodec
from taskharbor.core.codec import codec_name
from taskharbor.core.errors import CodecMismatch
from taskharbor.core.results import JobFilter
from taskharbor.crypto import AesGcmCodec
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.server import ReplyLost
from taskharbor.drivers.sqlite import SqliteDriver
from tests.support.postgres import emptied
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.drivers.base import Driver

AES = AesGcmCodec({"k": bytes(32)})
REQUEST = JobRequest(type="pay", payload={"card": "4111"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def driver(file: Path) -> Iterator[SqliteDriver]:
    with closing(SqliteDriver(file, deadline=timedelta(seconds=2))) as made:
        yield made


@pytest.fixture
def server() -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(emptied())) as made:
        yield made


def jobs(driver: Driver) -> int:
    return len(driver.inspector.find(JobFilter(), limit=10).jobs)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_another_process_gets_what_the_first_has_recorded(store: str, file: Path) -> None:
    url = emptied()

    def opened() -> Any:
        return closing(SqliteDriver(file) if store == "sqlite" else PostgresDriver(url))

    with opened() as first, opened() as second:
        assert (first.remember("codec", "aes"), second.remember("codec", "json")) == ("aes", "aes")


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_of_threads_that_record_at_once_one_wins(store: str, file: Path) -> None:
    start = threading.Barrier(6)
    with closing(SqliteDriver(file) if store == "sqlite" else PostgresDriver(emptied())) as driver:

        def remember(number: int) -> str:
            start.wait(20)
            return driver.remember("codec", f"codec {number}")

        with ThreadPoolExecutor(6) as threads:
            answers = {*threads.map(remember, range(6))}
        assert answers == {*driver.inspector.settings().values()}


def test_a_file_is_written_to_for_the_first_record_only(driver: SqliteDriver, file: Path) -> None:
    driver.remember("codec", "json")
    with closing(SqliteDriver(file)) as other:
        before = other.statements
        other.remember("codec", "json")

        assert other.statements == before


def test_a_record_in_a_joined_transaction_goes_with_its_rollback(driver: SqliteDriver, file: Path) -> None:
    with closing(sqlite3.connect(file)) as db:
        client = Client(driver.join(db), codec=AES)
        client.enqueue(REQUEST)
        client.enqueue(REQUEST)  # again, before the commit
        db.rollback()
        undone = driver.inspector.settings()
        client.enqueue(REQUEST)
        db.commit()

    assert (undone, driver.inspector.settings()) == ({}, {"codec": "aes-gcm+json"})
    assert jobs(driver) == 1


def test_a_joined_write_transaction_does_not_wait_for_itself(driver: SqliteDriver, file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")  # SQLite has one writer: the driver's own connection would wait for it
        Client(driver.join(db)).enqueue(REQUEST)
        db.execute("COMMIT")

    assert driver.inspector.settings() == {"codec": "json"}


@pytest.mark.parametrize("isolation", ["", None])
def test_a_joined_transaction_with_another_codec_is_refused(driver: SqliteDriver, file: Path, isolation: Any) -> None:
    Client(driver, codec=AES).enqueue(REQUEST)

    with closing(sqlite3.connect(file, isolation_level=isolation)) as db, pytest.raises(CodecMismatch):
        Client(driver.join(db)).enqueue(REQUEST)

    assert jobs(driver) == 1


def test_a_record_is_kept_when_the_joined_transaction_of_a_server_rolls_back(server: PostgresDriver) -> None:
    with psycopg.connect(emptied()) as db:
        Client(server.join(db), codec=AES).enqueue(REQUEST)
        # The record has its own transaction; otherwise another session would wait for this one.
        assert server.inspector.settings() == {"codec": "aes-gcm+json"}
        db.rollback()

    assert (jobs(server), server.inspector.settings()) == (0, {"codec": "aes-gcm+json"})


def test_a_second_joined_enqueue_runs_no_statement_for_the_codec(server: PostgresDriver) -> None:
    with psycopg.connect(emptied()) as db:
        Client(server.join(db)).enqueue(REQUEST)
        before = server.statements
        Client(server.join(db)).enqueue(REQUEST)

        assert server.statements == before


def test_an_async_joined_transaction_records_and_is_refused(server: PostgresDriver) -> None:
    url = emptied()

    async def enqueue(codec: Any) -> None:
        async with await psycopg.AsyncConnection.connect(url) as db:
            await Client(server, codec=codec).aenqueue_in(server.ajoin(db), REQUEST)

    asyncio.run(enqueue(AES))
    asyncio.run(enqueue(AES))
    with pytest.raises(CodecMismatch):
        asyncio.run(enqueue(JsonCodec()))

    assert jobs(server) == 2


def test_a_session_that_records_the_same_setting_is_waited_for(server: PostgresDriver) -> None:
    """The other session commits after this one has read that there is no record, so the insert conflicts."""
    url = emptied()
    with psycopg.connect(url) as db, ThreadPoolExecutor(1) as threads:
        db.execute("INSERT INTO th_settings (name, value) VALUES ('codec', 'aes')")
        answer = threads.submit(server.remember, "codec", "json")
        with psycopg.connect(url, autocommit=True) as watcher:
            wait_until(lambda: watcher.execute(_IS_WAITING).fetchone() is not None)
        db.commit()

        assert answer.result(20) == "aes"


_IS_WAITING = """
    SELECT 1 FROM pg_stat_activity
     WHERE wait_event_type = 'Lock' AND query LIKE '%th_settings%' AND datname = current_database()
"""


def test_a_lost_reply_is_resolved_and_asked_again(server: PostgresDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = server._connections  # noqa: SLF001  replies are lost below the driver
    fetch, lost = connections.fetch, [ReplyLost("gone", 1)]
    resolved: list[ReplyLost] = []

    def losing(statement: Any, **params: Any) -> Any:
        rows = fetch(statement, **params)
        if "INSERT" in statement and lost:
            raise lost.pop()
        return rows

    monkeypatch.setattr(connections, "fetch", losing)
    monkeypatch.setattr(connections, "resolve", resolved.append)

    assert (server.remember("codec", "aes"), len(resolved)) == ("aes", 1)


def test_the_python_of_the_page_on_codecs_runs_and_reads_both_formats() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "codecs.md").read_text("utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "codecs.md", "exec"), names)
    before, after = names["Mixed"](AES, encrypts=False), names["Mixed"](AES, encrypts=True)

    assert (codec_name(before), codec_name(after)) == ("json", "aes-gcm+json")
    for writer in (before, after):
        data = writer.encode({"card": "4111"}, context=b"job 1")
        assert [reader.decode(data, context=b"job 1") for reader in (before, after)] == [{"card": "4111"}] * 2
