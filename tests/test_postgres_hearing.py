"""Ending the thread that listens, whichever of the two is quicker."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

from taskharbor.drivers.postgres import PostgresDriver, listening
from taskharbor.drivers.postgres.hearing import Ear
from tests.postgres import emptied
from tests.waiting import LIMIT

if TYPE_CHECKING:
    import pytest


class QuickEar(Ear):
    """Its thread ends the moment it may: when `close` sets the flag, before `close` does anything else."""

    @property
    def _is_closed(self) -> bool:
        return self._may_end

    @_is_closed.setter
    def _is_closed(self, value: bool) -> None:
        self._may_end = value
        if value and self._thread is not None:
            self._alarm.send(b".")
            self._thread.join(LIMIT)


class AwakeEar(Ear):
    """Its thread wakes the moment it may: `close` does nothing more until the thread has looked around."""

    def __init__(self, *args: Any) -> None:
        self.looked = threading.Event()
        super().__init__(*args)

    def _wake(self) -> None:
        self.looked.clear()
        super()._wake()
        assert self.looked.wait(LIMIT)

    def _look(self) -> None:
        super()._look()
        self.looked.set()


def test_closing_a_listener_whose_thread_ends_at_once_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "Ear", QuickEar)
    with closing(PostgresDriver(emptied())) as driver:
        listener = driver.listen(["default"])
        ear = driver._audience._ear  # noqa: SLF001  it is not shown to anyone
        assert isinstance(ear, QuickEar)
        assert ear._thread is not None  # noqa: SLF001  as above

        listener.close()

        assert not ear._thread.is_alive()  # noqa: SLF001  as above


def test_closing_a_listener_whose_thread_wakes_at_once_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "Ear", AwakeEar)
    with closing(PostgresDriver(emptied())) as driver:
        listener = driver.listen(["default"])
        ear = driver._audience._ear  # noqa: SLF001  it is not shown to anyone
        assert isinstance(ear, AwakeEar)
        assert ear._thread is not None  # noqa: SLF001  as above

        listener.close()

        assert not ear._thread.is_alive()  # noqa: SLF001  as above
