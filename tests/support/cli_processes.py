"""Run the command line in real processes, with only the given environment variables."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LIMIT_SECONDS: Final = 30  # far more than any of them needs
NO_ENVIRON: Final[Mapping[str, str]] = MappingProxyType({})
PYTHON: Final = (sys.executable, "-W", "error")


def taskharbor(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "taskharbor.cli", *args, **environ)


def python(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [*PYTHON, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS, env=environ)


class Started:
    """A running command and its log."""

    def __init__(self, process: subprocess.Popen[str], file: Path) -> None:
        self._process, self._file = process, file
        self.send_signal, self.wait, self.poll = process.send_signal, process.wait, process.poll

    def log(self) -> str:
        return self._file.read_text()

    def has_logged(self) -> bool:
        assert self._process.poll() is None, self.log()
        return bool(self.log())


@contextmanager
def started(folder: Path, *args: str, app: str, environ: Mapping[str, str] = NO_ENVIRON) -> Iterator[Started]:
    """Start a command beside the file shop.py with *app*, and wait until it logs."""
    (folder / "shop.py").write_text(app)
    file = folder / "stderr"
    with file.open("w") as stderr:
        command = [*PYTHON, "-m", "taskharbor.cli", *args]
        process = subprocess.Popen(command, cwd=folder, stderr=stderr, text=True, env={"PATH": os.defpath, **environ})
    running_command = Started(process, file)
    try:
        wait_until(running_command.has_logged)
        yield running_command
    finally:
        process.kill()
        process.wait()
