"""Races between closing a LISTEN connection and the end of its thread."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.drivers.postgres import PostgresDriver, listen
from taskharbor.drivers.postgres.listen import ListenConnection
from tests.support.postgres import emptied
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    import socket


class EndsFirst(ListenConnection):
    """A connection whose thread ends when `close` sets the flag, before `close` does anything else."""

    @property
    def _is_closed(self) -> bool:
        return self._may_end

    @_is_closed.setter
    def _is_closed(self, value: bool) -> None:
        self._may_end = value
        if value and self._thread is not None:
            self._wake_sender.send(b".")
            self._thread.join(LIMIT_SECONDS)


class WakesFirst(ListenConnection):
    """A connection whose thread wakes and checks the flag before `close` continues."""

    def __init__(self, *args: Any) -> None:
        self.is_woken, self.has_checked = threading.Event(), threading.Event()
        super().__init__(*args)

    @property
    def _is_closed(self) -> bool:
        may_end = self._may_end
        if self.is_woken.is_set():
            self.has_checked.set()
        return may_end

    @_is_closed.setter
    def _is_closed(self, value: bool) -> None:
        self._may_end = value

    def _run(self) -> None:
        self._wake_receiver = ObservedSocket(self._wake_receiver, self.is_woken)  # type: ignore[assignment]
        super()._run()

    def _wake(self) -> None:
        super()._wake()
        assert self.has_checked.wait(LIMIT_SECONDS)


class ObservedSocket:
    """A socket that sets an event when it is read."""

    def __init__(self, inner: socket.socket, is_read: threading.Event) -> None:
        self._inner, self._is_read = inner, is_read
        self.fileno, self.close = inner.fileno, inner.close

    def recv(self, size: int) -> bytes:
        read = self._inner.recv(size)
        self._is_read.set()
        return read


@pytest.mark.parametrize("kind", [EndsFirst, WakesFirst])
def test_closing_a_listener_ends_its_thread_in_any_order(
    monkeypatch: pytest.MonkeyPatch, kind: type[ListenConnection]
) -> None:
    monkeypatch.setattr(listen, "ListenConnection", kind)
    with closing(PostgresDriver(emptied())) as driver:
        listener = driver.listen(["default"])
        connection: Any = driver._listeners._listen_connection  # noqa: SLF001  not part of the API
        wait_until(lambda: connection._expected_echo is None)  # noqa: SLF001  the arrival would wake the thread

        with connection._wake_sender.dup():  # noqa: SLF001  as above; a thread that still waits would see the last close
            listener.close()

            assert not connection._thread.is_alive()  # noqa: SLF001  as above
