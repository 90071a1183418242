"""The stores that are not PostgreSQL: a Redis server for each copy of the data, and SQLite files."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from benchmarks.peers.environments import NotInstalled, redis_server
from benchmarks.peers.processes import cpu_of
from taskharbor.testing.postgres import _free_port, _mortal  # it has the same needs as the test server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 30.0
_PAUSE: Final = threading.Event()


class RedisStores:
    """Folders with the data of Redis. A server runs on one of them while it is used."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        self._running: dict[str, _RedisServer] = {}

    def once(self, name: str, fill: Callable[[str], None], *, template: str = "") -> None:
        """Make and fill the data *name*, if there is none, and keep it."""
        if not (self._folder / name).exists():
            try:
                fill(self.copy(name, template=template))
                self._running.pop(name).stop("SAVE")
            except BaseException:
                self.drop(name)
                raise

    def copy(self, name: str, *, template: str = "") -> str:
        """Start a server on a copy of *template*, and return its URL."""
        _copied(self._folder, name, template)
        self._running[name] = server = _RedisServer(self._folder / name, self._options)
        return server.url

    def drop(self, name: str) -> None:
        if server := self._running.pop(name, None):
            server.stop("NOSAVE")
        shutil.rmtree(self._folder / name, ignore_errors=True)

    @contextmanager
    def counting(self, name: str) -> Iterator[Callable[[str], int]]:
        """Yield a function that returns the sum of the numbers that commands, one on each line, answer."""
        with self._running[name].connection() as ask:
            yield lambda commands: sum(int(ask(line).removeprefix(":")) for line in commands.splitlines())

    def tidy(self, name: str) -> None:
        """Redis has nothing to tidy up."""

    def cpu(self, name: str) -> float:
        return cpu_of(self._running[name].pid, with_ended_children=True)


class SqliteStores:
    """Folders with a SQLite file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def once(self, name: str, fill: Callable[[str], None], *, template: str = "") -> None:
        """Make and fill the file *name*, if there is none, and keep it."""
        if not (self._folder / name).exists():
            try:
                fill(self.copy(name, template=template))
            except BaseException:
                self.drop(name)
                raise

    def copy(self, name: str, *, template: str = "") -> str:
        _copied(self._folder, name, template)
        return f"sqlite:///{self._file(name)}"

    def drop(self, name: str) -> None:
        shutil.rmtree(self._folder / name, ignore_errors=True)

    @contextmanager
    def counting(self, name: str) -> Iterator[Callable[[str], int]]:
        connection = sqlite3.connect(self._file(name), timeout=START_SECONDS)
        try:
            yield lambda query: int(connection.execute(query).fetchone()[0])
        finally:
            connection.close()

    def tidy(self, name: str) -> None:
        with sqlite3.connect(self._file(name)) as connection:
            connection.execute("ANALYZE")
        connection.close()

    def cpu(self, _: str) -> float:
        """Return 0: SQLite runs in the workers."""
        return 0.0

    def _file(self, name: str) -> Path:
        return self._folder / name / "jobs.db"


class _RedisServer:
    """A server on the loopback interface, started on the data in *folder*."""

    def __init__(self, folder: Path, options: tuple[str, ...]) -> None:
        program, environ = redis_server()
        self._port = _free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        where = ["--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(folder)]
        with (folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_mortal(), str(program), *where, *options], env=environ, stdout=log, stderr=log, process_group=0
            )
        self.pid = self._process.pid
        self._wait_until_ready(folder / "redis.log")

    def stop(self, how: str) -> None:
        """Stop the server; *how* says whether it must write its data to the disk."""
        with suppress(OSError, subprocess.TimeoutExpired):  # whatever happens, it ends
            with self.connection() as ask:
                ask(f"SHUTDOWN {how}")
            self._process.wait(STOP_SECONDS)
        self._process.kill()
        if self._process.wait() != 0 and how == "SAVE":
            raise OSError("redis-server did not save its data")

    @contextmanager
    def connection(self) -> Iterator[Callable[[str], str]]:
        """Yield a function that sends a command and returns the first line of the answer."""
        with socket.create_connection(("127.0.0.1", self._port), START_SECONDS) as link, link.makefile("rb") as lines:

            def ask(command: str) -> str:
                link.sendall(f"{command}\r\n".encode())
                return lines.readline().decode().strip()

            yield ask

    def _wait_until_ready(self, log: Path) -> None:
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends and self._process.poll() is None:
            with suppress(OSError), self.connection() as ask:
                if ask("PING") == "+PONG":  # not while it loads its data
                    return
            _PAUSE.wait(0.02)
        self._process.kill()
        self._process.wait()
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise NotInstalled(f"redis-server did not start: {' '.join(last)}")


def _copied(folder: Path, name: str, template: str) -> None:
    shutil.rmtree(folder / name, ignore_errors=True)
    if template:
        shutil.copytree(folder / template, folder / name)
    else:
        (folder / name).mkdir(parents=True)
