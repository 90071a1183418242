"""Real threads that run one at a time: for handlers that sleep, for long or until their process ends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from taskharbor.testing.simulation.world import ProcessKilled

if TYPE_CHECKING:
    from collections.abc import Callable


class HandlerThread(threading.Thread):
    """Runs a piece of work when it is resumed, and only until it sleeps or ends: never beside its caller.

    What waits by `World.wait` has everything else on top of it, on one stack. What sleeps here has not.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._turn, self._rest = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._is_killed = False

    def resume(self) -> None:
        """Let it run until it sleeps or ends; raise what it raised."""
        if self.ident is None:
            self.start()
        self._turn.release()
        self._rest.acquire()
        if self._error is not None:
            raise self._error

    def sleep(self) -> None:
        """Let the caller of `resume` continue; return when it is resumed again. For the thread itself."""
        self._rest.release()
        self._turn.acquire()
        if self._is_killed:
            raise ProcessKilled

    def kill(self) -> None:
        """End its work if it sleeps."""
        self._is_killed = True
        if self.is_alive():
            self.resume()

    def run(self) -> None:
        self._turn.acquire()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  it is for the caller
            self._error = error
        finally:
            self._rest.release()
