"""Run the command line in real processes, with only the given environment variables."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

LIMIT_SECONDS: Final = 30  # far more than any of them needs
PYTHON: Final = (sys.executable, "-W", "error")


def taskharbor(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "taskharbor.cli", *args, **environ)


def python(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [*PYTHON, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS, env=environ)
