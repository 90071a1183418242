"""Reports the state of a service to systemd (sd_notify)."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from taskharbor.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG: Final = logging.getLogger("taskharbor.systemd")
FEED_SECONDS: Final = 1.0


class SystemdNotifier:
    """Sends states to the socket that systemd gives a unit with ``Type=notify``. Without one, it does nothing."""

    def __init__(self, settings: Settings | None = None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        settings = settings or Settings.from_env()
        self._address = settings.notify_socket
        self._monotonic = monotonic
        self._fed_at = -1.0
        self._is_failing = False
        self._watchdog_seconds = None if settings.watchdog is None else settings.watchdog.total_seconds() / 2

    def ready(self, status: str) -> None:
        """Report that the service has started, or has reloaded."""
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def feed(self) -> None:
        """Report that the service makes progress, as often as its watchdog demands. Call it every second or so."""
        now = self._monotonic()
        if self._watchdog_seconds is not None and now >= self._fed_at + self._watchdog_seconds:
            self._fed_at = now
            self._send("WATCHDOG=1")

    def watch(self, is_alive: Callable[[], bool]) -> None:
        """Feed the watchdog from a thread of its own while the service *is_alive*; only if systemd has one."""
        if self._watchdog_seconds is None:
            return
        every = min(self._watchdog_seconds, FEED_SECONDS)

        def run() -> None:
            while not threading.Event().wait(every):
                if is_alive():
                    self.feed()

        threading.Thread(target=run, name="taskharbor-watchdog", daemon=True).start()

    def _send(self, state: str) -> None:
        if self._address is None:
            return
        # An abstract address is written with an @.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(1.0)
                sender.sendto(state.encode(), address)
        except OSError as error:  # systemd may be busy: if the watchdog were not fed again, it would end the unit
            if not self._is_failing:
                _LOG.warning("cannot notify systemd at %s: %s", self._address, error)
            self._is_failing = True
        else:
            self._is_failing = False


def _line(text: str) -> str:
    return " ".join(text.split())
