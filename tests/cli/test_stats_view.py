"""Queues, workers, stats and top."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self

import pytest

from taskharbor.cli.main import ExitCode
from taskharbor.core.model import WorkerRecord
from taskharbor.core.statistics import MINUTE, ROLL_UP, ROLL_UP_PERIOD, Metric, StatisticTally, begin_of
from tests.support.cli_processes import LIMIT_SECONDS, PYTHON
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.console import Console


def test_queues_are_listed_with_what_is_in_them(any_console: Console) -> None:
    any_console.enqueue(queue="mail")
    any_console.dead()
    any_console.driver.control.pause(["mail"], by="ops@host")
    any_console.driver.maintenance.roll_up(keep=timedelta(days=1))

    rows = {row[0]: row[1:] for row in any_console("queues", "list").rows}
    [default, mail] = any_console("queues", "list", "--json").data["queues"]

    assert rows["default"][:5] == ["0", "0", "0", "1", "0"]
    assert (rows["mail"][0], rows["mail"][-1]) == ("1", "by ops@host")
    assert (default["name"], default["counts"]["DEAD"], default["paused_by"]) == ("default", 1, None)
    assert (mail["name"], mail["counts"]["PENDING"], mail["paused_by"]) == ("mail", 1, "ops@host")


@pytest.mark.parametrize("words", [("queues", "list"), ("stats",)])
def test_counts_that_are_not_updated_are_called_old(
    any_console: Console, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    any_console.enqueue(queue="mail")

    assert any_console(*words).err == "no worker or janitor has run yet: jobs may not be counted\n"
    assert any_console(*words, "--json").err == ""
    [mail] = any_console("queues", "list", "--json").data["queues"]
    assert mail["counted_at"] is None

    any_console.driver.maintenance.claim_duty(ROLL_UP, every=ROLL_UP_PERIOD)
    any_console.driver.maintenance.roll_up(keep=timedelta(days=1))
    [mail] = any_console("queues", "list", "--json").data["queues"]
    assert abs(datetime.fromisoformat(mail["counted_at"]) - any_console.driver.inspector.now()) < timedelta(seconds=30)
    monkeypatch.setattr("taskharbor.cli.stats_view.MAX_COUNT_AGE", timedelta(hours=1))
    assert any_console(*words).err == ""

    monkeypatch.setattr("taskharbor.cli.stats_view.MAX_COUNT_AGE", -timedelta(hours=1))
    assert any_console(*words).err.endswith(" old: workers and janitors update them, and none is live\n")


def test_without_queues_nothing_is_said_of_counts(any_console: Console) -> None:
    assert any_console("queues", "list").err == "no queues; no job has been enqueued yet\n"


def test_pausing_and_resuming_a_queue_adds_audit_entries(any_console: Console) -> None:
    any_console.enqueue()

    paused, again = any_console("queues", "pause", "default"), any_console("queues", "pause", "default")
    resumed, again_resumed = (
        any_console("queues", "resume", "default"),
        any_console("queues", "resume", "default", "--json"),
    )

    assert (paused.code, paused.out, paused.err) == (ExitCode.OK, "default\n", "")
    assert (again.code, again.err) == (ExitCode.OK, "queue default was already paused\n")
    assert resumed.code == ExitCode.OK
    assert [queue["paused_at"] for queue in again_resumed.data["queues"]] == [None]
    assert [entry.action for entry in any_console.audit()] == ["queues.resume", "queues.pause"]


def test_pausing_an_unknown_queue_suggests_the_nearest_name(console: Console) -> None:
    console.enqueue(queue="mail")

    said = console("queues", "pause", "mial")

    assert (said.code, said.out) == (ExitCode.NOT_FOUND, "")
    assert said.err == "error: queue 'mial' not found; did you mean 'mail'?\n"
    assert console.audit() == []


def test_a_queue_can_be_paused_before_its_first_job(console: Console) -> None:
    said = console("queues", "pause", "later", "--new", "--json")

    assert said.data["queues"][0]["name"] == "later"


@pytest.mark.parametrize("words", [["pause"], ["resume"], ["pause", "two words", "--new"], ["resume", "none"]])
def test_what_is_no_queue_is_refused(words: list[str], console: Console) -> None:
    assert console("queues", *words).code in {ExitCode.USAGE, ExitCode.NOT_FOUND}


def test_workers_are_listed_with_their_state(any_console: Console) -> None:
    record = WorkerRecord(
        id="w-1",
        host="box",
        pid=7,
        queues=("default", "mail"),
        types=("greet",),
        concurrency=4,
        lost_slots=1,
        busy_slots=2,
        version="4f2c",
        started_at=any_console.driver.inspector.now(),
    )
    any_console.driver.maintenance.record_worker(record)

    [row] = any_console("workers", "list").rows
    [view] = any_console("workers", "list", "--json").data["workers"]

    assert row[:9] == ["w-1", "box", "7", "default mail", "greet", "4f2c", "4", "2", "1"]
    assert row[-1] == "live"
    assert (view["id"], view["queues"], view["concurrency"], view["lost_slots"]) == ("w-1", ["default", "mail"], 4, 1)


def test_an_empty_worker_list_explains_how_to_start_one(console: Console) -> None:
    said = console("workers", "list")

    assert (said.code, said.out) == (ExitCode.OK, "")
    assert "'taskharbor worker APP' starts one" in said.err


def test_stats_count_over_all_queues(any_console: Console) -> None:
    any_console.enqueue(queue="mail")
    any_console.enqueue()
    any_console.dead(queue="other")
    any_console.driver.control.pause(["mail"], by="ops@host")
    any_console.driver.maintenance.roll_up(keep=timedelta(days=1))

    data = any_console("stats", "--json").data
    plain = any_console("stats").out

    assert (data["counts"]["PENDING"], data["counts"]["DEAD"], data["workers_alive"]) == (2, 1, 0)
    assert (data["queues"], data["paused_queues"]) == (3, ["mail"])
    assert data["finished_last_hour"] == {"SUCCEEDED": 0, "DEAD": 1, "CANCELED": 0}
    assert data["oldest_age_seconds"] >= 0
    assert facts_of(plain)["pending"] == "2"


def test_without_a_terminal_top_prints_repeatedly(console: Console) -> None:
    console.enqueue()

    said = console("top", "--every", "100ms", "--count", "2", "--json")

    assert said.code == ExitCode.OK
    assert [json.loads(line)["counts"]["PENDING"] for line in said.out.splitlines()] == [1, 1]


@pytest.mark.parametrize("words", [["--every", "1ms"], ["--count", "0"]])
def test_a_wrong_line_is_a_usage_error(words: list[str], console: Console) -> None:
    assert console("top", *words).code == ExitCode.USAGE


@pytest.mark.parametrize("without_rich", [False, True])
def test_on_a_terminal_top_redraws_until_q_is_pressed(without_rich: bool, console: Console) -> None:
    console.enqueue(queue="mail")
    with Terminal(console.url, without_rich=without_rich) as terminal:
        wait_until(lambda: "mail" in terminal.shown() and "1 waiting" in terminal.shown())
        before = terminal.shown()

        terminal.press(b"x")
        wait_until(lambda: len(terminal.shown()) > len(before))
        terminal.press(b"q")

        assert terminal.process.wait(LIMIT_SECONDS) == 0


def test_ctrl_c_ends_top_without_a_traceback(console: Console) -> None:
    with Terminal(console.url) as terminal:
        wait_until(lambda: "waiting" in terminal.shown())

        terminal.process.send_signal(signal.SIGINT)

        assert terminal.process.wait(LIMIT_SECONDS) == 130
        assert "Traceback" not in terminal.shown()


class Terminal:
    """`taskharbor top` on a pseudo-terminal."""

    SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
if {hide!r}:
    sys.modules["rich"] = None
    from taskharbor.cli import render, stats_view
    render.has_rich = stats_view.has_rich = lambda: False
from taskharbor.cli.main import cli, run
sys.exit(run(cli, ["top", "--every", "100ms", "--url", {url!r}]))
"""

    def __init__(self, url: str, *, without_rich: bool = False) -> None:
        self._ours, theirs = pty.openpty()
        self._seen = b""
        script = self.SCRIPT.format(hide=without_rich, url=url)
        self.process = subprocess.Popen(
            [*PYTHON, "-c", script], stdin=theirs, stdout=theirs, stderr=theirs, env={"TERM": "xterm", "COLUMNS": "120"}
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def shown(self) -> str:
        while select.select([self._ours], [], [], 0)[0]:
            try:
                self._seen += os.read(self._ours, 65_536)
            except OSError:  # the other side is closed
                break
        return self._seen.decode(errors="replace")


def facts_of(out: str) -> dict[str, str]:
    return {name.strip(): value for name, _, value in (line.rpartition("  ") for line in out.splitlines())}


def test_a_series_is_printed_and_as_json_it_is_that_of_the_api(any_console: Console) -> None:
    any_console.dead(queue="mail")
    any_console.driver.maintenance.roll_up(keep=timedelta(days=1))

    [row] = any_console("stats", "series", "ended", "--by", "status").rows
    found = any_console("stats", "series", "ended", "--by", "queue", "--step", "60", "--json").data

    assert row[1:] == ["DEAD", "1"]
    assert (found["metric"], found["step"]) == ("ended", 60)
    assert [(point["group"], point["value"]) for point in found["points"]] == [("mail", 1)]


def test_a_series_of_run_times_has_percentiles(console: Console) -> None:
    minute = begin_of(console.driver.inspector.now(), MINUTE)
    tally = StatisticTally(minute, Metric.RUN, "mail", "send", "07", 100)
    console.driver.maintenance.record_statistics([tally])
    console.driver.maintenance.roll_up(keep=timedelta(days=1))

    [row] = console("stats", "series", "run", "-t", "send").rows

    assert row[2:] == ["100", "0.096", "0.1248", "0.12736"]


def test_a_series_with_too_many_points_is_a_usage_error(console: Console) -> None:
    said = console("stats", "series", "waiting", "--since", "90d")

    assert said.code == ExitCode.USAGE
    assert "more than 2,000 points" in said.err


def test_types_and_versions_are_listed(any_console: Console) -> None:
    minute = begin_of(any_console.driver.inspector.now(), MINUTE)
    tally = StatisticTally(minute, Metric.ATTEMPTS, "mail", "send", "FAILED", 4)
    any_console.driver.maintenance.record_statistics([tally], version="4f2c")
    any_console.driver.maintenance.roll_up(keep=timedelta(days=1))

    [kind], [version] = any_console("stats", "types").rows, any_console("stats", "versions").rows

    assert (kind, version[0]) == (["send", "0", "4"], "4f2c")
    assert any_console("stats", "types", "--json").data["types"][0]["attempts_last_hour"] == 4
    assert any_console("stats", "versions", "--json").data["versions"][0]["version"] == "4f2c"
