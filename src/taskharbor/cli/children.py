"""Processes of ours that run beside a command, and end with it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

LAST: Final = timedelta(seconds=10)


class ChildProcess:
    """A command of `taskharbor` in a process of its own."""

    def __init__(self, words: Sequence[str], *, url: str) -> None:
        self.name = words[0]
        self._command = [sys.executable, "-m", "taskharbor.cli", *words]
        self._environment = child_environment(url=url)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # In a group of its own: Ctrl-C is for the parent, which asks it once to end; twice would mean at once.
        self._process = subprocess.Popen(self._command, env=self._environment, process_group=0)  # noqa: S603  our own words

    @property
    def is_running(self) -> bool:
        """It was started, and nobody has heard of its end."""
        return self._process is not None

    def ended(self) -> int | None:
        """Return the exit code of one that ended by itself, once."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._process = None
        return code

    def stop(self) -> None:
        """Ask it to end, and see to it that it does."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(LAST.total_seconds())
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
        self._process = None
