"""Starts the zygote of a worker, or a child in an interpreter of its own."""

from __future__ import annotations

import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Final, cast

from taskharbor.cli.app_loader import load_app
from taskharbor.core.codec import codec_name
from taskharbor.core.errors import TaskHarborError
from taskharbor.harbor import Harbor
from taskharbor.isolated import linux
from taskharbor.isolated.child import IsolatedApp
from taskharbor.isolated.zygote import Zygote, forking, spawning
from taskharbor.worker.isolation.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.worker import Worker

LOAD_FAILED: Final = 1
MAX_IMPORT_SECONDS: Final = 120


def main(arguments: Sequence[int]) -> int:
    """Run until the worker ends; return the exit code."""
    control = Wire(socket.socket(fileno=arguments[0]))
    begin = control.receive()
    if begin is None:
        return LOAD_FAILED
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which ends this process
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.path[:] = begin[0]["path"]
    if len(arguments) > 1:
        _, link, output, jobs, parent = arguments
        control.close()
        return load(begin[0]).serve((link, output, jobs), parent=parent)
    return serve(control, begin[0])


def serve(control: Wire, begin: dict[str, Any]) -> int:
    """Load the app, report that to the worker, and serve it."""
    before = linux.open_sockets()
    signal.alarm(MAX_IMPORT_SECONDS)  # an import that hangs must not outlive a worker that is killed meanwhile
    try:
        app = load(begin)
    except TaskHarborError as error:
        control.send({"error": str(error)})
        return LOAD_FAILED
    signal.alarm(0)
    reason = linux.unclean() or _opened(before)
    control.send({"types": list(app.types), "codec": codec_name(app.codec), "unclean": reason})
    Zygote(control.socket, spawning(begin) if reason else forking(app)).run()
    return 0


def load(begin: dict[str, Any]) -> IsolatedApp:
    """Import the app. Its store is not opened: what it has opened on import is closed."""
    loaded = load_app(begin["app"])
    harbor = loaded.harbor or Harbor()
    if begin["url"] is not None:
        harbor.use_store(begin["url"])
    harbor.close()
    app = IsolatedApp(harbor, harbor.policy, begin["log_levels"])
    loaded(cast("Worker", app))
    return app


def _opened(before: set[int]) -> str:
    opened = len(linux.open_sockets() - before)
    return f"it has opened {opened} connections" if opened else ""
