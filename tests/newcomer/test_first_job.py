"""The first minutes: the README's example on SQLite, in several terminals."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.shell import Shell

GREETINGS: Final = """
from taskharbor import Harbor

harbor = Harbor("sqlite:///jobs.db")


@harbor.task
def greet(name: str) -> str:
    return f"hello {name}"
"""
CLIENT: Final = """
from greetings import greet, harbor

handle = greet.enqueue("Grace")
print(handle.result(timeout=30))
"""
HURRIED: Final = CLIENT.replace("timeout=30", "timeout=0.1")


@pytest.mark.parametrize("command", ["worker greetings.py --grace 25s", "dev greetings.py --no-api"])
def test_the_first_job_runs_on_the_store_that_the_app_names(command: str, shell: Shell) -> None:
    shell.write("greetings.py", GREETINGS)
    shell.write("client.py", CLIENT)
    with shell.background(f"taskharbor {command}") as worker:
        worker.wait_for("greet")

        ran = shell.run("python client.py")

    assert (ran.code, ran.out) == (0, "hello Grace\n"), ran
    assert not (shell.folder / ".taskharbor").exists()


def test_dev_prints_how_other_terminals_reach_the_store_of_an_app_that_names_none(shell: Shell) -> None:
    shell.write("greetings.py", GREETINGS.replace('"sqlite:///jobs.db"', ""))
    shell.write("client.py", CLIENT)
    with shell.background("taskharbor dev greetings.py --no-api") as dev:
        dev.wait_for("greet")
        [url] = re.findall(r"export TASKHARBOR_URL=(\S+)", dev.log())
        shell.environ["TASKHARBOR_URL"] = url.strip("'\"")

        ran = shell.run("python client.py")

    assert (ran.code, ran.out) == (0, "hello Grace\n"), ran


def test_a_result_that_does_not_come_says_what_it_waits_for(shell: Shell) -> None:
    shell.write("greetings.py", GREETINGS)
    shell.write("client.py", HURRIED)

    ran = shell.run("python client.py")

    assert ran.code == 1
    last = ran.err.strip().splitlines()[-1]
    assert "PENDING" in last
    assert "no live worker serves queue 'default'" in last


def test_enqueue_waits_for_the_result_and_prints_it(shell: Shell) -> None:
    shell.write("greetings.py", GREETINGS)
    with shell.background("taskharbor worker greetings.py") as worker:
        worker.wait_for("greet")

        ran = shell.run("taskharbor enqueue greet name=Ada --wait --app greetings.py")

    assert ran.code == 0, ran
    assert '"hello Ada"' in ran.out


def test_a_worker_says_once_what_it_runs_and_ends_on_ctrl_c(shell: Shell) -> None:
    shell.write("greetings.py", GREETINGS)
    with shell.background("taskharbor worker greetings.py") as worker:
        worker.wait_for("greet")
        [start] = worker.log().splitlines()
        for part in ("jobs.db", "default", "greet", "lease"):
            assert part in start

        worker.send(signal.SIGINT)

        assert worker.exit_code() == 0
    assert len(worker.log().splitlines()) <= 3
    workers = shell.run("taskharbor workers list --url sqlite:///jobs.db --json")
    assert workers.code == 0, workers
    assert "greetings" not in workers.out
    assert '"id"' not in workers.out, "a worker that stopped cleanly is not listed"


def test_a_misspelled_file_is_an_error_and_is_not_created(shell: Shell) -> None:
    for command in ("jobs list", "queues list", "stats", "workers list", "dead list", "schedules list"):
        ran = shell.run(f"taskharbor {command} --url sqlite:///typo.db")

        assert ran.code != 0, ran
        assert "typo.db" in ran.err
        assert len(ran.err.splitlines()) == 1
    assert [*shell.folder.iterdir()] == []


def test_without_a_store_and_an_app_both_ways_out_are_named(shell: Shell) -> None:
    ran = shell.run("taskharbor jobs list")

    assert ran.code == 2
    assert "--url" in ran.err
    assert "no app was found here either: name yours in TASKHARBOR_APP" in ran.err


def test_a_store_in_memory_is_refused_for_one_command(shell: Shell) -> None:
    ran = shell.run("taskharbor enqueue greet --url memory://")

    assert ran.code == 2
    assert "memory://" in ran.err


def test_a_job_is_named_by_a_part_of_its_id(shell: Shell) -> None:
    shell.write("greetings.py", GREETINGS)
    enqueued = shell.run("taskharbor enqueue greet name=Ada --app greetings.py --json")
    [job_id] = set(re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", enqueued.out))

    ran = shell.run(f"taskharbor jobs show {job_id[:12]} --url sqlite:///jobs.db")

    assert ran.code == 0, ran
    assert job_id in ran.out


def test_a_running_job_is_canceled_soon(shell: Shell) -> None:
    shell.write("slow.py", SLOW)
    with shell.background("taskharbor worker slow.py --lease 1h") as worker:
        worker.wait_for("nap")
        shell.run("taskharbor enqueue nap --app slow.py")
        wait_until((shell.folder / "began").exists)

        ran = shell.run("taskharbor jobs list --status processing --json --url sqlite:///jobs.db")
        [job_id] = set(re.findall(r'"id": ?"([0-9a-f-]{36})"', ran.out))
        canceled = shell.run(f"taskharbor jobs cancel {job_id} --url sqlite:///jobs.db")
        assert canceled.code == 0, canceled
        wait_until((shell.folder / "ended").exists)  # without a wake-up it takes a heartbeat, 20 minutes


SLOW: Final = """
import time
from pathlib import Path

from taskharbor import Context, Harbor

harbor = Harbor("sqlite:///jobs.db")


@harbor.task
def nap(ctx: Context) -> None:
    Path("began").touch()
    try:
        while True:
            ctx.raise_if_cancelled()
            time.sleep(0.01)
    finally:
        Path("ended").touch()
"""
