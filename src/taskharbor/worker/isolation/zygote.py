"""The worker's side of its zygote: starts it, and asks it for children."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import Problem, UsageError
from taskharbor.settings import child_environment
from taskharbor.worker.isolation.child import Child
from taskharbor.worker.isolation.errors import ChildNotStarted
from taskharbor.worker.isolation.job_queue import JobQueue
from taskharbor.worker.isolation.wire import FrameTooLarge, Wire

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_LOG: Final = logging.getLogger("taskharbor.worker")
LOAD_SECONDS: Final = 60.0
"""How long the import of the app may take, and a child's entry into its lifespan."""
FINISH_SECONDS: Final = 6.0
"""How long a zygote may take to end: its children may leave their lifespans."""
START: Final = b"s"
FINISH: Final = b"q"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildApp:
    """What children load. *app* is that of the command line; *url* is the store if it is not that of the app."""

    app: str
    url: str | None
    codec: str
    types: Collection[str]

    def message(self) -> dict[str, Any]:
        return {"app": self.app, "url": self.url, "path": list(sys.path), "log_levels": log_levels()}

    def check(self, answer: dict[str, Any]) -> None:
        """Raise `UsageError` if a zygote has not loaded what the worker needs."""
        if "error" in answer:
            raise UsageError(Problem(field="isolate", value=repr(self.app), rule=str(answer["error"])))
        if missing := sorted({*self.types} - {*answer["types"]}):
            rule = (
                f"{self.app} does not define it when it is imported in another process; "
                "define isolated tasks in a module, outside of functions and of: if __name__ == '__main__'"
            )
            raise UsageError(Problem(field="isolate", value=repr(missing[0]), rule=rule))
        if answer["codec"] != self.codec:
            rule = f"{self.app} has the codec {answer['codec']!r}, but this worker has {self.codec!r}"
            raise UsageError(Problem(field="isolate", value=repr(self.app), rule=rule))


class ZygoteProcess:
    """The process that children are forked from: it has imported the app, and has no threads and no connections.

    If importing the app starts threads or opens connections, it starts each child in a new interpreter instead.
    """

    def __init__(
        self, app: ChildApp, command: Sequence[str] = (sys.executable, "-P", "-m", "taskharbor.isolated")
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  a command of our own
                [*command, str(theirs.fileno())],
                env=child_environment(url=None),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what an app prints on import must not be taken for the output of a command
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the worker only
            )
        self._control = Wire(ours)
        try:
            self._load(app)
        except BaseException:
            self.close()
            raise

    def _load(self, app: ChildApp) -> None:
        self._control.socket.settimeout(LOAD_SECONDS)
        self._control.send(app.message())
        try:
            answer = self._control.receive()
        except TimeoutError:
            reason = f"importing it took longer than {LOAD_SECONDS:.0f} s"
            raise UsageError(Problem(field="isolate", value=repr(app.app), rule=reason)) from None
        if answer is None:
            reason = "the process that imports it has ended; its output says why"
            raise UsageError(Problem(field="isolate", value=repr(app.app), rule=reason))
        app.check(answer[0])
        self._control.socket.settimeout(None)
        if reason := answer[0]["unclean"]:
            text = "isolated processes of %s start slowly, as new interpreters: %s when it was imported"
            _LOG.warning(text, app.app, reason)

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self, *, within: float = 0.0) -> bool:
        """Return whether it has ended. An error of its connection comes a moment before its end."""
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            return False
        return True

    def start_child(self) -> Child:
        """Start a child, and wait until it is ready. Raises `ChildNotStarted`."""
        try:
            child = self._request_child()
        except OSError as error:  # the zygote is gone, or this process has too many descriptors
            raise ChildNotStarted(str(error)) from error
        try:
            child.wait_until_ready(timeout=LOAD_SECONDS)
        except (FrameTooLarge, OSError, ValueError) as error:
            child.close()
            raise ChildNotStarted(str(error)) from error
        except BaseException:
            child.close()
            raise
        return child

    def _request_child(self) -> Child:
        with ExitStack() as opened, ExitStack() as kept:
            (link, their_link), (supervision, their_supervision) = (
                tuple(stack.enter_context(end) for stack, end in zip((kept, opened), socket.socketpair(), strict=True))
                for _ in range(2)
            )
            jobs = JobQueue()
            kept.callback(jobs.close)
            output, their_output = os.pipe()
            kept.callback(os.close, output)
            opened.callback(os.close, their_output)
            descriptors = [their_link.fileno(), their_supervision.fileno(), their_output, jobs.exit.fileno()]
            socket.send_fds(self._control.socket, [START], descriptors)
            kept.pop_all()
        return Child(link, supervision, output, jobs)

    def finish(self) -> None:
        """Let the children leave their lifespans, and wait for them; kill what remains."""
        with suppress(OSError):
            self._control.socket.send(FINISH)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(FINISH_SECONDS)
        self.close()

    def close(self) -> None:
        """End the zygote and all of its children now."""
        self._control.close()
        try:
            self._process.wait(FINISH_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its children die with it
            self._process.wait()


def log_levels() -> dict[str, int]:
    """Return the levels of all loggers that have one, by name; that of the root logger by an empty name."""
    loggers = logging.root.manager.loggerDict.items()
    own = {name: each.level for name, each in loggers if isinstance(each, logging.Logger) and each.level}
    return {"": logging.root.level, **own}
