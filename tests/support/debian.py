"""Programs from Debian's packages, unpacked into a folder: nothing is installed, no rights are needed."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path


class NotUnpacked(Exception):
    """A package could not be downloaded or unpacked."""


def unpack(target: Path, *packages: str) -> None:
    """Download *packages* and the libraries that they need and the machine lacks, and unpack them into *target*."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        downloaded = folder / "packages"
        downloaded.mkdir()
        _run("apt-get", "download", *packages, *_missing_libraries(packages), cwd=downloaded)
        for package in downloaded.glob("*.deb"):
            _run("dpkg", "-x", str(package), "root", cwd=folder)
        if not target.exists():  # another process may have unpacked it meanwhile
            (folder / "root").rename(target)


def libraries(target: Path) -> Path:
    """Return the folder of the libraries that were unpacked."""
    return next(target.glob("usr/lib/*-linux-*"), target)


def _missing_libraries(packages: tuple[str, ...]) -> list[str]:
    lines = _run("apt-cache", "depends", "--important", *packages).splitlines()
    named = [line.split(": ")[1] for line in lines if line.strip().startswith("Depends: lib")]
    known = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *named],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return [name for name in named if f"{name} installed" not in known.splitlines()]


def _run(*command: str, cwd: Path | None = None) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=cwd)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotUnpacked(f"{command[0]!r}: {error}") from error
    if ran.returncode != 0:
        raise NotUnpacked(f"{' '.join(command)!r} printed: {ran.stderr.strip()}")
    return ran.stdout
