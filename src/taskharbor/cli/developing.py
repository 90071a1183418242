"""A worker that starts again whenever its code is saved, and what runs beside it."""

from __future__ import annotations

import signal
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskharbor.cli.children import ChildProcess
from taskharbor.cli.output import echo_status
from taskharbor.cli.reloading import FileWatcher
from taskharbor.cli.root import COMMANDS
from taskharbor.runtime import ThreadRuntime
from taskharbor.service import tick_until_signal
from taskharbor.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE_POLL: Final = timedelta(milliseconds=300)
DEV_GRACE: Final = "2s"


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
