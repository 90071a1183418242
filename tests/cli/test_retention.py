"""`--keep` and `--keep-dead` of real workers and janitors."""

from __future__ import annotations

import signal
from contextlib import closing, nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor import SqliteDriver, Status
from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance import Subject
from tests.cli.test_worker import started
from tests.support.cli_processes import LIMIT_SECONDS
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

HOURS: Final = timedelta(hours=1)


@pytest.mark.parametrize("command", [("worker", "shop.py"), ("janitor",)])
@pytest.mark.parametrize(
    ("options", "left"),
    [(("--keep", "2h"), Status.DEAD), (("--keep-dead", "2h"), Status.SUCCEEDED)],
)
def test_a_service_removes_what_is_older_than_its_options_say(
    command: tuple[str, ...], options: tuple[str, ...], left: Status, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.db"
    clock = ManualClock(datetime.now(UTC) - 3 * HOURS)
    with closing(SqliteDriver(file, clock=clock)) as driver:
        subject = Subject(driver=driver, clock=clock, spend=None, transaction=lambda: nullcontext(driver.insert))
        jobs = [subject.bring(status) for status in (Status.SUCCEEDED, Status.DEAD)]

        with started(tmp_path, *command, "--url", f"sqlite:///{file}", *options) as service:
            wait_until(lambda: len(driver.inspector.get(jobs)) == 1)
            service.send_signal(signal.SIGTERM)
            assert service.wait(LIMIT_SECONDS) == 0

        assert [job.status for job in driver.inspector.get(jobs).values()] == [left]


@pytest.mark.parametrize("command", ["worker", "janitor"])
@pytest.mark.parametrize("option", ["--keep", "--keep-dead"])
def test_a_retention_below_a_second_is_refused(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(cli, [command, option, "0s"])

    assert code == ExitCode.USAGE
    assert f"invalid value for '{option}': '0s': at least 1s" in capsys.readouterr().err
