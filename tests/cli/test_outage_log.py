"""What a service logs while PostgreSQL is away: a line when that begins, and a line when it ends."""

from __future__ import annotations

import re
import signal
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor import Client, JobRequest, Status
from taskharbor.drivers.connect import connect
from tests.support.cli_processes import LIMIT_SECONDS, started
from tests.support.postgres import database
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.base import Driver
    from tests.support.cli_processes import Started

SHOP: Final = """
import pathlib
import threading
from datetime import timedelta

from taskharbor import Harbor, PostgresDriver

harbor = Harbor(PostgresDriver({conninfo!r}, deadline=timedelta(seconds=1)))

@harbor.task
def wait_for(began: str, end: str) -> None:
    pathlib.Path(began).touch()
    while not pathlib.Path(end).exists():
        threading.Event().wait(0.01)
"""
OUTAGE_SECONDS: Final = 3.0


@pytest.mark.parametrize("command", ["worker", "janitor"])
def test_an_outage_of_the_store_is_two_lines_of_the_log(command: str, tmp_path: Path) -> None:
    with database() as url, closing(connect(url)) as driver, Proxy(url) as proxy:
        with started(tmp_path, command, "shop.py", app=SHOP.format(conninfo=proxy.url)) as service:
            job = begin_job(driver, tmp_path) if command == "worker" else None
            before = len(service.log().splitlines())
            proxy.refuse()
            wait_until(lambda: "store unavailable" in service.log())
            (tmp_path / "end").touch()  # now the recorder has an outcome that it cannot record
            threading.Event().wait(OUTAGE_SECONDS)
            during = service.log().splitlines()[before:]
            proxy.accept()
            wait_until(lambda: "store available again" in service.log())
            if job is not None:
                wait_until(lambda: driver.inspector.get([job])[job].status is Status.SUCCEEDED)
            stop(service)
        log = service.log()

    [began] = during
    assert re.search(r" WARNING taskharbor.runtime: store unavailable; retrying: database .* on 127.0.0.1: ", began)
    assert len(re.findall("unavailable|available again|failed;", log)) == 2
    assert re.search(r" WARNING taskharbor.runtime: store available again after [\d.]+ s; failed calls: \d+\n", log)
    assert "Traceback" not in log


def begin_job(driver: Driver, folder: Path) -> JobId:
    payload = {"began": str(folder / "began"), "end": str(folder / "end")}
    job_id = Client(driver).enqueue(JobRequest(type="wait_for", payload=payload)).id
    wait_until((folder / "began").exists)
    return job_id


def stop(service: Started) -> None:
    service.send_signal(signal.SIGTERM)
    assert service.wait(LIMIT_SECONDS) == 0
