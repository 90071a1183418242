"""Run a new user's first steps with the README's commands, from the clone on, and measure how long each takes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
README: Final = (ROOT / "README.md").read_text("utf-8")
TIMEOUT_SECONDS: Final = 300  # for the longest step
POLL_SECONDS: Final = 0.2
STORE: Final = "sqlite:///.taskharbor/dev.db"
SLOW: Final = """

import pathlib, time

@harbor.task
def slow() -> str:
    if not pathlib.Path("seen").exists():
        pathlib.Path("seen").touch()
        time.sleep(3600)
    return "done"
"""
FIXED: Final = """

@harbor.task
def unknown_task() -> str:
    return "done"
"""


def figures() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        return {"seconds": walk(Path(folder))}


def walk(folder: Path) -> dict[str, float]:
    user, took = User(folder), Steps()
    with took.step("clone"):
        user.sh("git", "clone", "--quiet", str(ROOT), "clone")
    with took.step("install"):
        user.sh(sys.executable, "-m", "venv", "env")
        extras = re.findall(r"^\$ pip install '(.+)'$", README, re.MULTILINE)[0]
        user.sh("env/bin/pip", "install", "--quiet", extras.replace(".[", "./clone["))
    (folder / "greetings.py").write_text(app() + SLOW)
    with user.developing() as dev:
        with took.step("from taskharbor dev to the first job"):
            until(lambda: " runs greet" in dev.output())
            user.run(*readme_line("enqueue greet"))
            assert "SUCCEEDED" in user.run(*readme_line("jobs list"))
        with took.step("a job survives the kill -9 of its worker"):
            survive(user, folder)
        with took.step("a dead letter is fixed and requeued"):
            requeue(user, folder)
    return took.seconds


def survive(user: User, folder: Path) -> None:
    job = user.run("enqueue", "slow", "--url", STORE).strip()
    until((folder / "seen").exists)
    [worker] = json.loads(user.run("workers", "list", "--json", "--url", STORE))["workers"]
    os.kill(worker["pid"], signal.SIGKILL)
    (folder / "greetings.py").write_text(app() + SLOW + "\n")  # a change of the file restarts the worker
    user.run("jobs", "wait", job, "--timeout", "2m", "--url", STORE)


def requeue(user: User, folder: Path) -> None:
    job = user.run("enqueue", "unknown_task", "--url", STORE).strip()
    until(lambda: json.loads(user.run("jobs", "show", job, "--json", "--url", STORE))["status"] == "DEAD")
    (folder / "greetings.py").write_text(app() + SLOW + FIXED)
    until(lambda: "unknown_task" in user.run("workers", "list", "--json", "--url", STORE))
    user.run("dead", "requeue", job, "--yes", "--url", STORE)
    user.run("jobs", "wait", job, "--timeout", "2m", "--url", STORE)


class User:
    """A user with a terminal in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sh(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self._folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def run(self, *words: str) -> str:
        return self.sh("env/bin/taskharbor", *words)

    @contextmanager
    def developing(self) -> Iterator[Developing]:
        file = self._folder / "output"
        command = ["env/bin/taskharbor", *readme_line("dev"), "--port", "0"]
        with file.open("w") as output:
            process = subprocess.Popen(command, cwd=self._folder, stderr=output, stdout=output)
        try:
            yield Developing(file)
            process.send_signal(signal.SIGINT)
            if code := process.wait(TIMEOUT_SECONDS):
                raise RuntimeError(f"taskharbor dev ended with {code}: {file.read_text()}")
        finally:
            process.kill()
            process.wait()


class Developing:
    """A running `taskharbor dev`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def output(self) -> str:
        return self._file.read_text()


class Steps:
    """Measures how long each step takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - start, 1)


def app() -> str:
    """Return the first app of the README."""
    return str(re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0])


def readme_line(start: str) -> list[str]:
    [line] = re.findall(rf"^\$ taskharbor ({start}.*)$", README, re.MULTILINE)
    return str(line).split()


def until(is_true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(is_true)
        time.sleep(POLL_SECONDS)  # noqa: TID251  there is no event to wait for


if __name__ == "__main__":
    print(json.dumps(figures(), indent=2))
