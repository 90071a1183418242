"""The worker processes of the demo. Dead ones are replaced, as systemd or Kubernetes would do."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taskharbor.cli.demo.handlers import EffectLog

LEASE: Final = "2s"
OPTIONS: Final = ("--concurrency", "4", "--lease", LEASE, "--poll", "200ms", "--grace", "5s")


@dataclass(slots=True, kw_only=True)
class DemoWorker:
    number: int
    process: subprocess.Popen[bytes]


class DemoFleet:
    def __init__(self, folder: Path, url: str, *, deaths: EffectLog, say: Callable[[str], None]) -> None:
        self._folder, self._url = folder, url
        self._deaths, self._say = deaths, say
        self._watches: list[Thread] = []
        self.members: list[DemoWorker] = []

    def start(self, count: int) -> None:
        self.members = [DemoWorker(number=n, process=self._spawn(n)) for n in range(1, count + 1)]

    def kill(self, pid: int) -> None:
        """Kill a worker with SIGKILL, which it cannot handle."""
        [member] = [member for member in self.members if member.process.pid == pid]
        member.process.kill()
        self._say(f"killed worker {member.number} with SIGKILL while it runs jobs")

    def replace_the_dead(self) -> None:
        for member in self.members:
            if member.process.poll() is not None:
                member.process = self._spawn(member.number)
                self._say(f"worker {member.number} died; starting a replacement")

    def stop(self) -> list[int]:
        """Send SIGTERM to all workers, and return their exit codes."""
        for member in self.members:
            member.process.send_signal(signal.SIGTERM)
        return [member.process.wait(timeout=30) for member in self.members]

    def end(self) -> None:
        """Kill any worker that still runs."""
        for member in self.members:
            with suppress(ProcessLookupError):
                member.process.kill()
        for watch in self._watches:
            watch.join()

    def _spawn(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "taskharbor.cli", "worker", "taskharbor.cli.demo.handlers", "--url", self._url]
        with (self._folder / f"worker-{number}.log").open("ab") as log:
            process = subprocess.Popen([*command, *OPTIONS], stdout=log, stderr=log)  # noqa: S603  fixed command
        self._watches.append(Thread(target=self._watch, args=(process,)))
        self._watches[-1].start()
        return process

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Log the time when the process dies; recovery times count from there."""
        process.wait()
        self._deaths.write("died", pid=process.pid)
