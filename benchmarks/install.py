"""The number of packages that an installation brings, and the time of `taskharbor --help`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS: Final = 300  # for pip to resolve
MAX_PACKAGES: Final = {".": 3, ".[all]": 45}
RUNS: Final = 11
MAX_HELP_MILLISECONDS: Final = 150


def figures() -> dict[str, object]:
    packages = {what: packages_of(what) for what in MAX_PACKAGES}
    for what, most in MAX_PACKAGES.items():
        if len(packages[what]) > most:
            raise RuntimeError(f"pip install {what} brings {len(packages[what])} packages: {packages[what]}")
    took = help_milliseconds()
    if took > MAX_HELP_MILLISECONDS:
        raise RuntimeError(f"taskharbor --help takes {took} ms")
    return {
        "packages": {f"pip install {what}": len(found) for what, found in packages.items()},
        "milliseconds of taskharbor --help, warm": took,
    }


def packages_of(what: str) -> list[str]:
    """Return the packages that pip would install, including TaskHarbor."""
    base = str(getattr(sys, "_base_executable", sys.executable))  # an environment made by uv has no pip
    command = [base, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-", what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS)
    report: dict[str, Any] = json.loads(done.stdout)
    return sorted(each["metadata"]["name"] for each in report["install"])


def help_milliseconds() -> float:
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        command = [sys.executable, "-m", "taskharbor.cli", "--help"]
        subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_SECONDS)
        times.append(time.perf_counter() - start)
    return round(1_000 * statistics.median(times[1:]), 1)


if __name__ == "__main__":
    print(json.dumps(figures(), indent=2))
