"""Signals, pipes and terminals, tested with real processes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from contextlib import closing
from typing import IO, TYPE_CHECKING

import pytest

from tests.support.cli_processes import LIMIT_SECONDS, PYTHON, python, taskharbor

if TYPE_CHECKING:
    from pathlib import Path

WAIT_FOR_SIGNAL = """
import signal, sys, threading
import click
from taskharbor.cli.main import cli, run

@cli.command()
def wait():
    click.echo("waiting")
    threading.Event().wait()

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background parent process may ignore it
sys.exit(run(cli, ["wait"]))
"""

SHOW_STREAMS = """
import sys
from taskharbor.cli.main import cli, main

@cli.command()
def show():
    with open("numbers", "w") as file:
        print(*[each.fileno() for each in (sys.stdin, sys.stdout, sys.stderr)], "and", file.fileno(), file=file)

sys.argv[1:] = ["show"]
sys.exit(main())
"""

INTERRUPT_AN_IMPORT = """
import runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "click":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # as above
sys.meta_path.insert(0, Interrupt())
runpy.run_module("taskharbor.cli", run_name="__main__", alter_sys=True)
"""


def test_the_module_runs_as_the_command_does() -> None:
    done = taskharbor("version")

    assert done.returncode == 0
    assert done.stdout.startswith("taskharbor ")
    assert done.stderr == ""


def test_the_exit_code_and_the_error_reach_the_shell() -> None:
    done = taskharbor("migrate", "check", TASKHARBOR_URL="postgre://app:hunter2@db/app")

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: no store has URLs that begin with postgre://; did you mean postgres://?\n"


def test_ctrl_c_ends_a_command_with_130_and_no_traceback() -> None:
    command = [*PYTHON, "-c", WAIT_FOR_SIGNAL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"

        process.send_signal(signal.SIGINT)

        _, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130
    assert err.strip() == ""


def test_ctrl_c_while_modules_are_imported_prints_no_traceback() -> None:
    done = python("-c", INTERRUPT_AN_IMPORT)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("args", [["version"], ["version", "--json"], ["--help"]])
def test_a_closed_stdout_prints_no_error(args: list[str]) -> None:
    with pipe_without_reader() as stdout:
        done = subprocess.run(
            [*PYTHON, "-m", "taskharbor.cli", *args], stdout=stdout, stderr=subprocess.PIPE, check=False, env={}
        )

    assert done.returncode == 1
    assert done.stderr == b""


def test_an_error_with_closed_stderr_still_sets_the_exit_code() -> None:
    with pipe_without_reader() as nowhere:
        command = [*PYTHON, "-m", "taskharbor.cli", "no-such-command"]
        done = subprocess.run(command, stdout=nowhere, stderr=nowhere, check=False, env={})

    assert done.returncode == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_closed_are_opened_again(closed: str, tmp_path: Path) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *PYTHON, "-c", SHOW_STREAMS]
    done = subprocess.run(command, cwd=tmp_path, check=False, env={}, timeout=LIMIT_SECONDS)

    streams, _, other = (tmp_path / "numbers").read_text().partition(" and ")
    assert streams == "0 1 2"
    assert int(other) > 2
    assert done.returncode == 0


def test_a_terminal_gets_color_unless_no_color_is_set() -> None:
    assert error_on_a_terminal({}).startswith("\x1b[31m\x1b[1merror:\x1b[0m no such command")
    assert error_on_a_terminal({"NO_COLOR": "1"}).startswith("error: no such command")


def test_a_pipe_gets_no_color() -> None:
    done = taskharbor("no-such-command")

    assert done.stderr.startswith("error: no such command")


def pipe_without_reader() -> IO[bytes]:
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "wb", buffering=0)


def error_on_a_terminal(environ: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    with closing(os.fdopen(ours, "rb", buffering=0)) as screen, closing(os.fdopen(theirs, "wb", buffering=0)) as stderr:
        command = [*PYTHON, "-m", "taskharbor.cli", "no-such-command"]
        subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=stderr, check=False, timeout=LIMIT_SECONDS, env=environ
        )
        return screen.read(4096).decode()
