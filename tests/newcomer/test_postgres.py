"""A newcomer's PostgreSQL: without tables, with a wrong password, gone while a worker runs."""

from __future__ import annotations

import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.postgres import database
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from tests.support.shell import Shell

OUTAGE_SECONDS: Final = 10.0
SERVICES: Final = ("worker", "janitor", "enqueuer -q mail", "api --port 0")


def through(proxy: Proxy, url: str) -> str:
    """Return *url* with the port of *proxy*, which needs to read what is sent."""
    return re.sub(r":\d+/", f":{proxy.port}/", url) + "?sslmode=disable&gssencmode=disable"


@pytest.mark.parametrize("command", SERVICES)
def test_a_database_without_tables_is_one_line_and_exit_code_9(
    command: str, shop: Shell, empty_database: str, sqs: dict[str, str]
) -> None:
    shop.environ |= {"DATABASE_URL": empty_database, **sqs}

    ran = shop.run(f"taskharbor {command} --url {empty_database}")

    assert ran.code == 9, ran
    [line] = ran.err.splitlines()
    assert "taskharbor migrate up" in line
    assert "--migrate" in line


def test_migrate_at_start_makes_the_tables(shop: Shell, empty_database: str) -> None:
    shop.environ["DATABASE_URL"] = empty_database
    with shop.background("taskharbor worker --migrate") as worker:
        worker.wait_for("thumbnail")

        listed = shop.run(f"taskharbor jobs list --url {empty_database}")

    assert listed.code == 0, listed
    assert "Traceback" not in worker.log()


def test_dev_makes_the_tables_by_itself(shop: Shell, empty_database: str) -> None:
    shop.environ["DATABASE_URL"] = empty_database
    with shop.background("taskharbor dev --no-api") as dev:
        dev.wait_for("thumbnail")

        listed = shop.run(f"taskharbor jobs list --url {empty_database}")

    assert listed.code == 0, listed


@pytest.mark.parametrize("command", ["worker", "janitor", "jobs list"])
def test_a_database_that_does_not_exist_is_one_line_and_exit_code_3(
    command: str, shop: Shell, empty_database: str
) -> None:
    url = re.sub(r"/[^/?]+(\?|$)", r"/no_such_database\1", empty_database)

    ran = shop.run(f"taskharbor {command} --url {url}")

    assert ran.code == 3, ran
    assert "no_such_database" in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err.splitlines()) <= 2


def test_an_outage_of_ten_seconds_is_at_most_three_lines(shop: Shell) -> None:
    with database() as url, Proxy(url) as proxy:
        shop.environ["DATABASE_URL"] = through(proxy, url)
        with shop.background("taskharbor worker") as worker:
            worker.wait_for("thumbnail")
            proxy.refuse()
            worker.wait_for("WARNING")
            threading.Event().wait(OUTAGE_SECONDS)  # what is measured: the lines of this time
            during = worker.log().splitlines()[1:]
            proxy.accept()
            wait_until(lambda: len(worker.log().splitlines()) > len(during) + 1)
            after = worker.log().splitlines()[1 + len(during) :]

    assert len(during) <= 3, "\n".join(during)
    assert "Traceback" not in worker.log()
    assert len(after) <= 3, "\n".join(after)


def test_an_idle_worker_ends_at_once_while_the_store_is_away(shop: Shell) -> None:
    with database() as url, Proxy(url) as proxy:
        shop.environ["DATABASE_URL"] = through(proxy, url)
        with shop.background("taskharbor worker --grace 60s") as worker:
            worker.wait_for("thumbnail")
            proxy.refuse()
            worker.wait_for("WARNING")

            start = time.monotonic()
            worker.send(signal.SIGTERM)

            assert worker.exit_code() == 0
            assert time.monotonic() - start < LIMIT_SECONDS / 2  # it may wait as long as the limit for its jobs
