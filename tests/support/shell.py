"""Runs commands as a person types them: in a folder, with the installed scripts on the PATH."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_SECONDS: Final = 60  # far more than any of them needs
BIN: Final = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished command: its exit code and what it printed."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit {self.code}\n{self.out}{self.err}"


class Running:
    """A command in the background. Its stdout and stderr go to one file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def log(self) -> str:
        return self._log.read_text("utf-8", errors="replace")

    def wait_for(self, text: str, *, count: int = 1) -> None:
        """Wait until the log contains *text*; fail if the process ends before."""
        wait_until(lambda: self.log().count(text) >= count or self.is_over, limit=LIMIT_SECONDS)
        assert self.log().count(text) >= count, f"it ended with {self._process.returncode}:\n{self.log()}"

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        """Wait for the end and return the exit code."""
        return self._process.wait(LIMIT_SECONDS)

    def stop(self) -> int:
        """Send SIGTERM if it is running, and return its exit code."""
        if not self.is_over:
            self.send(signal.SIGTERM)
        return self.exit_code()


@dataclass
class Shell:
    """A folder and environment variables in which commands run."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def run(self, line: str, *, stdin: str = "") -> Ran:
        """Run a command line, without a shell, and return its end."""
        done = subprocess.run(
            shlex.split(line),
            cwd=self.folder,
            env=self._environ(),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def background(self, line: str) -> Iterator[Running]:
        """Start a command line; stop it at the end."""
        log = self.folder / f"{len([*self.folder.glob('*.log')])}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                shlex.split(line), cwd=self.folder, env=self._environ(), stdout=output, stderr=output
            )
        running = Running(process, log)
        try:
            yield running
        finally:
            running.stop()

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")

    def _environ(self) -> dict[str, str]:
        path = os.pathsep.join([str(BIN), os.defpath])
        return {"PATH": path, "HOME": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1", **self.environ}
