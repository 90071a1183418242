"""The development server: child processes, and a watcher that restarts the worker when its code changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskharbor.cli.main import COMMANDS
from taskharbor.cli.render import echo_status
from taskharbor.runtime import ThreadRuntime
from taskharbor.service import tick_until_signal
from taskharbor.settings import Settings, child_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STOP_TIMEOUT: Final = timedelta(seconds=10)
_SKIPPED: Final = {"__pycache__", "node_modules", "site-packages"}
_ENVIRONMENT: Final = "pyvenv.cfg"
MAX_WATCHED_FILES: Final = 5_000
FILE_POLL: Final = timedelta(milliseconds=300)
DEV_GRACE: Final = "2s"


class ChildProcess:
    """A `taskharbor` command that runs as a child process."""

    def __init__(self, words: Sequence[str], *, url: str) -> None:
        self.name = words[0]
        self._command = [sys.executable, "-m", "taskharbor.cli", *words]
        self._environment = child_environment(url=url)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # In its own process group: Ctrl-C must reach only the parent. A child that gets a second signal exits at once.
        self._process = subprocess.Popen(self._command, env=self._environment, process_group=0)  # noqa: S603  fixed command

    @property
    def is_running(self) -> bool:
        """Whether it was started and is not known to have ended."""
        return self._process is not None

    def ended(self) -> int | None:
        """Return the exit code if the process ended by itself, but only once; otherwise None."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._process = None
        return code

    def stop(self) -> None:
        """Send SIGTERM; after ten seconds, SIGKILL."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT.total_seconds())
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
        self._process = None


class FileWatcher:
    """Detects changes of the Python files in a folder, by polling."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = dict(self._scan())

    def changed(self) -> list[str]:
        """Return the files that were changed, created or removed since the last call."""
        now = dict(self._scan())
        changed = {file for file, _ in now.items() ^ self._known.items()}
        self._known = now
        return sorted(os.path.relpath(file, self._folder) for file in changed)

    def _scan(self) -> Iterator[tuple[str, tuple[int, int]]]:
        left = MAX_WATCHED_FILES
        for parent, folders, files in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if _is_watched(Path(parent, name)))
            for name in files:
                if name.endswith(".py") and left:
                    left -= 1
                    yield from _stamp(os.path.join(parent, name))  # noqa: PTH118  a Path per file takes three times as long


def _is_watched(folder: Path) -> bool:
    return not folder.name.startswith(".") and folder.name not in _SKIPPED and not (folder / _ENVIRONMENT).exists()


def _stamp(file: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        found = os.stat(file)  # noqa: PTH116  as above
    except OSError:  # an editor may be replacing it
        return
    yield file, (found.st_mtime_ns, found.st_size)


def children_for(app: str, url: str, *, port: int | None) -> list[ChildProcess]:
    """Return the processes to run for *app*, its worker first."""
    uses_sqs = _uses_sqs()
    commands = [["worker", app, "--grace", DEV_GRACE, *(["--sqs"] if uses_sqs else [])]]
    if port is not None and _has_api():
        commands.append(["api", app, "--host", "127.0.0.1", "--port", str(port)])
    if uses_sqs:
        commands.append(["enqueuer"])
    return [ChildProcess([*words, "--url", url], url=url) for words in commands]


class DevServer:
    """Runs *children* and watches the folder of *app*; the first child is restarted when a file changes."""

    def __init__(self, app: str, children: Sequence[ChildProcess]) -> None:
        self._files = FileWatcher(folder_of(app))
        self._children = list(children)

    def run(self) -> None:
        """Run the children until a signal, then stop all of them."""
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))  # the terminal was closed
        try:
            for child in self._children:
                child.start()
            tick_until_signal(ThreadRuntime(sync_threads=1), "dev", self.tick)
        finally:
            self._stop()

    def tick(self) -> timedelta:
        for child in self._children:
            if (code := child.ended()) is not None:
                echo_status(f"{child.name} exited with code {code}; restarting when a file is saved")
        if changed := self._files.changed():
            self._restart(changed)
        return FILE_POLL

    def _stop(self) -> None:
        # Ignore further signals: they would interrupt this and leave processes running.
        before = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
        for child in self._children:
            child.stop()
        for number, handler in before:
            signal.signal(number, handler)

    def _restart(self, changed: Sequence[str]) -> None:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        for index, child in enumerate(self._children):
            if index == 0 or not child.is_running:
                echo_status(f"{changed[0]}{more} changed; restarting {child.name}")
                child.stop()
                child.start()


def folder_of(app: str) -> Path:
    """Return the folder that contains the files of *app*."""
    module_name, colon, _ = app.rpartition(":")
    file = Path(module_name if colon and not app.endswith(".py") else app)
    return file.resolve().parent if file.suffix == ".py" else Path.cwd()


def _uses_sqs() -> bool:
    """Return whether jobs are delivered through SQS, that is, whether a prefix for its queues is set."""
    return "enqueuer" in COMMANDS and Settings.from_env().sqs_prefix is not None


def _has_api() -> bool:
    return "api" in COMMANDS and all(find_spec(name) is not None for name in ("fastapi", "uvicorn"))
