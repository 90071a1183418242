"""The development server: child processes, and a watcher that restarts the worker when its code changes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskharbor.cli.app_store import AppStore, find_app_store
from taskharbor.cli.main import COMMANDS
from taskharbor.cli.render import echo_status
from taskharbor.drivers.connect import mask_url
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

    def __init__(self, words: Sequence[str], *, url: str | None) -> None:
        self.name = words[0]
        self.command = [sys.executable, "-m", "taskharbor.cli.dev_child", *words]
        self._environment = child_environment(url=url, development=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # In its own process group: Ctrl-C must reach only the parent. A child that gets a second signal exits at once.
        # With a pipe that nothing is written to: it ends with this process, even if that is killed.
        self._process = subprocess.Popen(  # noqa: S603  fixed command
            self.command, env=self._environment, process_group=0, stdin=subprocess.PIPE
        )

    @property
    def is_running(self) -> bool:
        """Whether it was started and is not known to have ended."""
        return self._process is not None

    def ended(self) -> int | None:
        """Return the exit code if the process ended by itself, but only once; otherwise None."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._forget()
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
        self._forget()

    def _forget(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
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


def children_for(
    app: str, url: str | None, *, port: int | None, options: Sequence[str] = (), api_options: Sequence[str] = ()
) -> list[ChildProcess]:
    """Return the processes to run for *app*, its worker first. Without *url* the app opens its store itself."""
    uses_sqs = _uses_sqs()
    commands = [["worker", app, "--grace", DEV_GRACE, *(["--sqs"] if uses_sqs else [])]]
    if port is not None and _has_api():
        commands.append(["api", app, "--host", "127.0.0.1", "--port", str(port), *api_options])
    if uses_sqs:
        commands.append(["enqueuer", app])
    return [ChildProcess([*words, "--migrate", "--wait", *options], url=url) for words in commands]


class DevServer:
    """Runs a worker for *app*, and the API and the enqueuer if they are available. Watches the folder of the app.

    The worker is restarted when a file changes. The store is *url*, else the one that the app names, else
    TASKHARBOR_URL, else a file in *folder*. If the app names another store after a change, all processes are
    restarted. *options* are passed to every process, *api_options* to the API only.
    """

    def __init__(
        self,
        app: str,
        folder: Path,
        *,
        url: str | None,
        port: int | None,
        options: Sequence[str] = (),
        api_options: Sequence[str] = (),
    ) -> None:
        self._api_options = api_options
        self._app, self._folder, self._url, self._port, self._options = app, folder, url, port, options
        self._files = FileWatcher(folder_of(app))
        self._children: list[ChildProcess] = []
        self._store: AppStore | None = None
        self._is_started = False

    def run(self) -> None:
        """Run the children until a signal, then stop all of them."""
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))  # the terminal was closed
        try:
            tick_until_signal(ThreadRuntime(sync_threads=1), "dev", self.tick)
        finally:
            self._stop()

    def tick(self) -> timedelta:
        for child in self._children:
            if (code := child.ended()) is not None:
                echo_status(f"{child.name} exited with code {code}; restarting when a file is saved")
        changed = self._files.changed()
        if changed or not self._is_started:
            self._is_started = True
            self._load(changed)
        return FILE_POLL

    def _load(self, changed: Sequence[str]) -> None:
        """Start all processes on the store of the app, or restart the worker if the store is the same."""
        found = AppStore(url=self._url) if self._url else find_app_store(self._app)
        if found is None:
            for child in self._children[:1]:
                child.stop()  # its code is no longer what the files contain
            echo_status(f"{self._app} was not loaded; trying again when a file is saved")
        elif found != self._store:
            for child in self._children:
                child.stop()
            self._store = found
            self._children = self._children_on(found)
            for child in self._children:
                child.start()
        else:
            self._restart(changed)

    def _children_on(self, store: AppStore) -> list[ChildProcess]:
        if self._url:
            return self._children_at(self._url, "--url", self._url)
        if store.is_driver:
            return self._children_at(None)
        url = store.url or Settings.from_env().url
        if url is None:
            return self._children_at(self._embedded())
        echo_status(f"jobs are stored in {mask_url(url)}")
        return self._children_at(url)

    def _children_at(self, url: str | None, *options: str) -> list[ChildProcess]:
        return children_for(
            self._app, url, port=self._port, options=(*options, *self._options), api_options=self._api_options
        )

    def _embedded(self) -> str:
        """Return the URL of a SQLite file for an app that names no store, and print how other commands use it."""
        self._folder.mkdir(exist_ok=True)
        (self._folder / ".gitignore").write_text("*\n", "utf-8")
        file = self._folder / "dev.db"
        url = f"sqlite:///{file.as_posix()}"
        echo_status(f"{self._app} names no store; jobs are stored in {file}")
        echo_status("to use the same store in other terminals, first run:")
        echo_status(f"export TASKHARBOR_URL={shlex.quote(url)}")
        return url

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
