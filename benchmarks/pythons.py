"""Runs all tests on every Python of the machine, and jobs with the wheel installed there."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.support.installed import Installed, install, pythons
from tools.checks import GROUPS
from tools.release import build

ROOT: Final = Path(__file__).resolve().parent.parent
INSTALL_SECONDS: Final = 1_200
TEST_SECONDS: Final = 3_600
TESTED: Final = [name for name, [command, *_] in GROUPS.items() if command[0] == "pytest"]
"""The groups of tests: lint and types do not depend on the Python that runs them, and planted bugs hardly do."""


def figures() -> dict[str, object]:
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder / "dist")
        [wheel] = (folder / "dist").glob("*.whl")
        for version, python in pythons().items():
            wheel_ran = run_jobs(install(wheel, python=python, folder=folder / version))
            found[version] = {"the wheel": wheel_ran, "tests passed": run_tests(python, folder / f"tests-{version}")}
        return {"wheel": wheel.name, "pythons": found}


def run_jobs(installed: Installed) -> str:
    printed = installed.try_jobs()
    if "hello Ada 7" not in printed:
        raise RuntimeError(f"on {installed.python} it printed {printed}")
    return f"{installed.version()['version']} ran a sync and an async job"


def run_tests(python: str, folder: Path) -> int:
    """Run all tests in an environment with the locked packages; return how many passed. None may fail."""
    _run(python, "-m", "venv", str(folder))
    program = str(folder / "bin" / "python")
    pip = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(*pip, "--require-hashes", "-r", "requirements-dev.lock")
    _run(*pip, "--no-deps", "--no-build-isolation", "--editable", ".")
    printed = _run(program, "-m", "tools.checks", *TESTED, seconds=TEST_SECONDS)
    return sum(int(count) for count in re.findall(r"^=+ (\d+) passed", printed, re.MULTILINE))


def _run(*command: str, seconds: float = INSTALL_SECONDS) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    print(figures())
