"""A real PgBouncer in transaction mode, in front of a test server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from taskharbor.testing.postgres import _free_port, _mortal, _unprivileged  # it has the same needs as the test server
from tests.support.debian import NotUnpacked, libraries, unpack
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "pgbouncer"
SERVERS: Final = 5
"""The number of server connections that the pooler shares among all clients."""


@contextmanager
def pooler(url: str, **settings: str) -> Iterator[str]:
    """Start a pooler for the server of *url*, and yield the URL of the pooler."""
    program, libraries = found()
    with tempfile.TemporaryDirectory(prefix="taskharbor-pgbouncer-") as name:
        folder, port = Path(name), _free_port()
        (folder / "users.txt").write_text('"postgres" ""\n')
        (folder / "pgbouncer.ini").write_text(_configured(url, folder, port, settings))
        folder.chmod(0o755)
        before = [*_unprivileged(folder), *_mortal()]
        command = [*before, str(program), str(folder / "pgbouncer.ini")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"LD_LIBRARY_PATH": str(libraries)},
                process_group=0,
            )
        try:
            wait_until(lambda: _listens(port) or process.poll() is not None)
            assert process.poll() is None, (folder / "log").read_text()
            yield url.replace(f":{urlsplit(url).port}/", f":{port}/")
        finally:
            process.kill()
            process.wait(10)


def _configured(url: str, folder: Path, port: int, settings: dict[str, str]) -> str:
    chosen = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "trust",
        "auth_file": str(folder / "users.txt"),
        "pool_mode": "transaction",
        "default_pool_size": str(SERVERS),
        "max_client_conn": "200",
        **settings,
    }
    lines = [f"{name} = {value}" for name, value in chosen.items()]
    server = f"* = host=127.0.0.1 port={urlsplit(url).port}"
    return "\n".join(["[databases]", server, "[pgbouncer]", *lines, ""])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@cache
def found() -> tuple[Path, Path]:
    """Return the program and the folder of its libraries, from Debian's packages if it is not installed.

    If it cannot be installed, tests that need it fail: skipped tests would be forgotten.
    """
    if installed := shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin"):
        return Path(installed), CACHE
    if not CACHE.exists():
        try:
            unpack(CACHE, "pgbouncer")
        except NotUnpacked as error:
            raise NoPgBouncer(str(error)) from error
    [program] = CACHE.glob("usr/sbin/pgbouncer")
    return program, libraries(CACHE)


class NoPgBouncer(Exception):
    """PgBouncer is not installed and could not be downloaded."""

    def __str__(self) -> str:
        return f"NOT RUN: PgBouncer is needed; install it ('apt-get install pgbouncer'). {self.args[0]}"
