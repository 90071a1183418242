"""Run groups of tests on every Python from 3.11 to 3.14 that this machine has, each in its own environment."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CACHE: Final = ROOT / ".cache" / "pythons"
VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
GROUPS: Final = ("behaviour", "stores", "postgres", "worker", "harbor", "cli", "delivery", "api")
INSTALL_SECONDS: Final = 1_200
TEST_SECONDS: Final = 3_600


def figures() -> dict[str, object]:
    found = {version: python for version in VERSIONS if (python := interpreter(version)) is not None}
    return {
        version: tested(environment(version, found[version])) if version in found else "NOT RUN: not on this machine"
        for version in VERSIONS
    }


def interpreter(version: str) -> Path | None:
    """Return the Python of that version: on the PATH, or installed next to the running one."""
    installed = sorted(Path(sys.base_prefix).parent.glob(f"*{version}.*/bin/python{version}"))
    on_path = shutil.which(f"python{version}")
    return installed[-1] if installed else Path(on_path) if on_path else None


def environment(version: str, python: Path) -> Path:
    folder = CACHE / version
    shutil.rmtree(folder, ignore_errors=True)
    run([python, "-m", "venv", folder], INSTALL_SECONDS)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--require-hashes", "-r", ROOT / "requirements-dev.lock"], INSTALL_SECONDS)
    run([*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT], INSTALL_SECONDS)
    return folder / "bin" / "python"


def tested(python: Path) -> dict[str, object]:
    """Run the tests and return how many passed. Raise if any failed."""
    command: list[str | Path] = [python, "-m", "tools.checks", *GROUPS]
    ended = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, errors="replace", timeout=TEST_SECONDS
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{python}:\n{ended.stdout}")
    return {"tests passed": sum(map(int, re.findall(r"(\d+) passed", ended.stdout)))}


def run(command: list[object], seconds: int) -> None:
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True, timeout=seconds)
