"""Runs a command as a child of the development server, and stops it when the server is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

from taskharbor.cli import main

STDIN: Final = 0


def stop_with_parent() -> None:
    """Send SIGTERM to this process when its stdin ends: the parent holds the other end until it ends or is killed."""
    parent = os.dup(STDIN)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123  code of the user must not read from the pipe
        os.dup2(nothing.fileno(), STDIN)

    def wait() -> None:
        os.read(parent, 1)  # the parent writes nothing
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="taskharbor-parent", daemon=True).start()


if __name__ == "__main__":
    stop_with_parent()
    sys.exit(main())
