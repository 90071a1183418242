"""Run a function in a forked child process."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable


def in_a_child(work: Callable[[], object]) -> int:
    """Run *work* in a forked process and return its exit code: 0 if it succeeded within the time limit."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(round(LIMIT_SECONDS))
        try:
            work()
        except BaseException:  # noqa: BLE001  it must not propagate into the parent's test run
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
