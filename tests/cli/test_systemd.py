"""The states that systemd receives, and what happens while it accepts none."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.cli.systemd import SystemdNotifier
from taskharbor.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_watchdog_is_fed_again_after_systemd_did_not_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address, seconds = tmp_path / "notify", iter([0.0, 10.0, 20.0])
    settings = Settings(notify_socket=str(address), watchdog=timedelta(seconds=2))
    notifier = SystemdNotifier(settings, monotonic=lambda: next(seconds))
    for _ in range(2):
        notifier.feed()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(0)

        notifier.feed()

        assert systemd.recv(4096) == b"WATCHDOG=1"
    assert caplog.text.count("cannot notify systemd") == 1
