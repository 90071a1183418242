"""Finds Chromium, or unpacks it from Debian's packages: nothing is installed, no rights are needed.

The search: ``$TASKHARBOR_CHROMIUM``, the PATH, then ``.cache/chromium``. `tests.support.debian` finds direct
dependencies only; a browser needs theirs, too, which apt's own simulation of an installation lists.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SETTING: Final = "TASKHARBOR_CHROMIUM"
NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FOLDER: Final = Path(__file__).parents[2] / ".cache" / "chromium"
PACKAGES: Final = ("chromium-headless-shell", "fonts-dejavu-core")
ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
_INSTALLED: Final = re.compile(r"^Inst (\S+)", re.MULTILINE)


class NoBrowser(Exception):
    """There is no Chromium, and it could not be fetched. Tests that need one fail; they are not skipped."""


@dataclass(frozen=True, slots=True)
class Chromium:
    """A program, and the environment that it needs."""

    program: Path
    environment: dict[str, str]


def find_chromium() -> Chromium:
    """Return Chromium; fetch it if the machine has none."""
    given = os.environ.get(SETTING)  # noqa: TID251  the browser of the machine
    named = [given] if given else [found for name in NAMES if (found := shutil.which(name))]
    return Chromium(Path(named[0]), {**os.environ}) if named else _unpacked()  # noqa: TID251  a child inherits it


def _unpacked() -> Chromium:
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with (FOLDER.parent / "chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several groups of tests may start at the same time
        if not FOLDER.exists():
            _unpack()
    program = next(
        (each for each in FOLDER.glob("usr/lib/chromium/*headless*shell*") if os.access(each, os.X_OK)), None
    )
    if program is None:
        raise NoBrowser(f"{FOLDER} has no headless shell; remove the folder and try again")
    folders = sorted({str(each.parent) for each in FOLDER.rglob("*.so*") if "-linux-" in str(each.parent)})
    return Chromium(program, {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)})  # noqa: TID251  a child inherits it


def _unpack() -> None:
    names = _needed() or (_run("apt-get", "update") and _needed())
    if not names:
        raise NoBrowser(f"apt knows no package {PACKAGES[0]}; install Chromium, or set {SETTING} to its program")
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as name:
        folder = Path(name)
        downloaded, root = folder / "packages", folder / "root"
        downloaded.mkdir()
        _run("apt-get", "download", *names, cwd=downloaded)
        for package in downloaded.glob("*.deb"):
            _run("dpkg", "-x", str(package), str(root))
        root.rename(FOLDER)


def _needed() -> list[str]:
    """Return the packages that the machine lacks; none if apt does not know them."""
    command = ["apt-get", "install", "-s", "--no-install-recommends", *PACKAGES]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return _INSTALLED.findall(ran.stdout) if ran.returncode == 0 else []


def _run(*command: str, cwd: Path | None = None) -> bool:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=cwd)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoBrowser(f"{command[0]}: {error}; install Chromium, or set {SETTING} to its program") from error
    if ran.returncode != 0:
        raise NoBrowser(f"{' '.join(command[:3])} failed: {ran.stderr.strip()[-500:]}")
    return True
