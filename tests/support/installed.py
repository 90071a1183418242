"""Installs a wheel into a new environment of some Python, as a user does, and tries it there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

LIMIT_SECONDS: Final = 300  # pip downloads two packages
OLDEST: Final = (3, 11)
SCRIPT: Final = """
import sys
from taskharbor import Harbor

harbor = Harbor("sqlite:///jobs.db")


@harbor.task
def greet(name: str) -> str:
    return f"hello {name}"


@harbor.task
async def add(a: int, b: int) -> int:
    return a + b


first, second = greet.enqueue("Ada"), add.enqueue(3, 4)
add.using(idempotency_key="sum").enqueue(1, 1)
harbor.enqueue_many(add.call(n, n) for n in range(20))
harbor.worker().drain()
print(sys.version_info[:2], first.result(), second.result())
harbor.close()
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment that has TaskHarbor, and what was tried in it."""

    folder: Path
    python: str

    def run(self, *command: str) -> str:
        program = self.folder / "bin" / command[0]
        environ = {"PATH": os.defpath, "HOME": str(self.folder)}
        return _run(str(program), *command[1:], cwd=self.folder, env=environ)

    def version(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("taskharbor", "version", "--json"))
        return found

    def try_jobs(self) -> str:
        """Run a sync and an async job with warnings as errors, and return what the script prints."""
        (self.folder / "script.py").write_text(SCRIPT)
        return self.run("python", "-W", "error", "script.py").strip()


def install(wheel: Path, *, python: str, folder: Path) -> Installed:
    """Install *wheel* with its dependencies into a new environment of *python* in *folder*."""
    _run(python, "-m", "venv", str(folder))
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(*pip, str(wheel))
    return Installed(folder, python)


def pythons() -> dict[str, str]:
    """Return every Python of this machine that is new enough, by its version: of the PATH, and of pyenv."""
    roots = [Path.home() / ".pyenv" / "versions"]
    programs = [str(each) for root in roots for each in sorted(root.glob("3.*/bin/python"))]
    programs += [found for minor in range(OLDEST[1], 30) if (found := shutil.which(f"python3.{minor}"))]
    current = str(getattr(sys, "_base_executable", sys.executable))
    by_version = {_version_of(each): each for each in [*programs, current]}
    usable = {version: each for version, each in by_version.items() if version >= OLDEST}
    return {".".join(map(str, version)): each for version, each in sorted(usable.items())}


def _version_of(program: str) -> tuple[int, ...]:
    """Return the minor version of an interpreter, or an empty tuple if it does not run."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    numbers = re.match(r"Python (\d+)\.(\d+)", done.stdout)
    return (int(numbers[1]), int(numbers[2])) if numbers else ()


def _run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout
