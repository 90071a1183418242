"""A worker that starts again whenever its code is saved, and what runs beside it."""

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

LAST: Final = timedelta(seconds=10)
_SKIPPED: Final = {"__pycache__", "node_modules", "site-packages"}
_ENVIRONMENT: Final = "pyvenv.cfg"
MAX_WATCHED_FILES: Final = 5_000  # files; looking at more would cost more than it tells
FILE_POLL: Final = timedelta(milliseconds=300)
DEV_GRACE: Final = "2s"


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


class FileWatcher:
    """The Python files of a folder, and which of them changed since the last look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = dict(self._look())

    def changed(self) -> list[str]:
        """Return the files that were saved, made or removed since the last look."""
        now = dict(self._look())
        changed = {file for file, _ in now.items() ^ self._seen.items()}
        self._seen = now
        return sorted(os.path.relpath(file, self._folder) for file in changed)

    def _look(self) -> Iterator[tuple[str, tuple[int, int]]]:
        left = MAX_WATCHED_FILES
        for place, folders, files in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if _is_watched(Path(place, name)))
            for name in files:
                if name.endswith(".py") and left:
                    left -= 1
                    yield from _stamp(os.path.join(place, name))  # noqa: PTH118  a Path for each file takes thrice the time


def _is_watched(folder: Path) -> bool:
    return not folder.name.startswith(".") and folder.name not in _SKIPPED and not (folder / _ENVIRONMENT).exists()


def _stamp(file: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        found = os.stat(file)  # noqa: PTH116  as above
    except OSError:  # an editor may be about to replace it
        return
    yield file, (found.st_mtime_ns, found.st_size)


def children_for(app: str, url: str, *, port: int | None) -> list[ChildProcess]:
    """Return what runs for *app*: its worker first."""
    delivers = _has_delivery()
    commands = [["worker", app, "--grace", DEV_GRACE, *(["--sqs"] if delivers else [])]]
    if port is not None and _has_api():
        commands.append(["api", app, "--host", "127.0.0.1", "--port", str(port)])
    if delivers:
        commands.append(["enqueuer"])
    return [ChildProcess([*words, "--url", url], url=url) for words in commands]


class DevServer:
    """Watches the folder of *app*; the first of *children* runs its code, and starts again when that changed."""

    def __init__(self, app: str, children: Sequence[ChildProcess]) -> None:
        self._files = FileWatcher(folder_of(app))
        self._children = list(children)

    def run(self) -> None:
        """Keep everything running until a signal, and leave nothing behind."""
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
                echo_status(f"the {child.name} ended with {code}; it starts again when a file is saved")
        if changed := self._files.changed():
            self._restart(changed)
        return FILE_POLL

    def _stop(self) -> None:
        # Whoever is impatient now must not leave processes behind that nobody ends.
        before = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
        for child in self._children:
            child.stop()
        for number, handler in before:
            signal.signal(number, handler)

    def _restart(self, changed: Sequence[str]) -> None:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        for place, child in enumerate(self._children):
            if place == 0 or not child.is_running:
                echo_status(f"{changed[0]}{more} changed: the {child.name} starts again")
                child.stop()
                child.start()


def folder_of(app: str) -> Path:
    """Return the folder whose files make up *app*."""
    place, colon, _ = app.rpartition(":")
    file = Path(place if colon and not app.endswith(".py") else app)
    return file.resolve().parent if file.suffix == ".py" else Path.cwd()


def _has_delivery() -> bool:
    """Tell whether jobs shall go through SQS: somebody has said what its queues are called."""
    return "enqueuer" in COMMANDS and Settings.from_env().sqs_prefix is not None


def _has_api() -> bool:
    return "api" in COMMANDS and all(find_spec(name) is not None for name in ("fastapi", "uvicorn"))
