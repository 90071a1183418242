"""Ending the thread that listens, whichever of the two is quicker."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

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


def test_closing_a_listener_whose_thread_ends_at_once_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "Ear", QuickEar)
    with closing(PostgresDriver(emptied())) as driver:
        listener = driver.listen(["default"])
        ear = driver._audience._ear  # noqa: SLF001  it is not shown to anyone
        assert isinstance(ear, QuickEar)
        assert ear._thread is not None  # noqa: SLF001  as above

        listener.close()

        assert not ear._thread.is_alive()  # noqa: SLF001  as above
