"""Ends the process of a worker that has stopped, although threads of handlers are still running."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG: Final = logging.getLogger("taskharbor.cli")
EXIT_SECONDS: Final = 5.0
"""How long the exit of the process may take. In this time, exit handlers may send what they hold."""
LAST_WORDS_SECONDS: Final = 1.0
_OURS: Final = "taskharbor-"
"""The beginning of the names of our own threads. They are daemons, and Python waits for none of them."""


def exit_soon(code: int, words: Sequence[str] | None) -> None:
    """Let this process end with *code* within `EXIT_SECONDS`, whatever threads are left.

    Python waits for the threads of executors before it exits. A handler that awaited `asyncio.to_thread` may have
    timed out, but its thread runs on. Without this, a worker that has stopped would never end and never be replaced.

    Nothing is done unless *words*, the command line, are that of this process: tests run commands within their own.
    """
    if words and sys.argv[-len(words) :] == [*words]:
        with suppress(RuntimeError):  # no thread can be started
            threading.Thread(target=_exit, args=(code,), name="taskharbor-exit", daemon=True).start()


def _exit(code: int) -> None:
    threading.Event().wait(EXIT_SECONDS)
    # In another thread: a thread that never ends may hold the lock of the log, or of a stream.
    last_words = threading.Thread(target=_say_last_words, name="taskharbor-last-words", daemon=True)
    with suppress(RuntimeError):  # as above
        last_words.start()
        last_words.join(LAST_WORDS_SECONDS)
    os._exit(code)


def _say_last_words() -> None:
    names = sorted(each.name for each in threading.enumerate() if each is not threading.main_thread())
    left = ", ".join(name for name in names if not name.startswith(_OURS)) or "none that Python knows"
    _LOG.warning("exiting although threads are still running: %s", left)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be closed or None
            stream.flush()
