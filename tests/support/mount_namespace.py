"""Run a function in a process with its own mount namespace, so that mounts do not affect the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parents[2]
UNSHARE: Final = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-euc")
MOUNT: Final = 'mount -t tmpfs -o "$1" none "$2"; shift 2; exec "$@"'
CALL: Final = """
import importlib, json, pathlib, sys
module, name, folder = sys.argv[1:]
print(json.dumps(getattr(importlib.import_module(module), name)(pathlib.Path(folder))))
"""
DEADLINE: Final = 60


def call_in(folder: Path, call: Callable[[Path], Any], *, mounted: str) -> Any:
    """Return the result of *call* in a process that has a tmpfs, *mounted* with these options, at *folder*."""
    _skip_unless_allowed(folder)
    done = _run(mounted, folder, sys.executable, "-c", CALL, call.__module__, call.__name__, str(folder))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _skip_unless_allowed(folder: Path) -> None:
    try:
        tried = _run("size=4k", folder, "true")
    except FileNotFoundError as missing:
        pytest.skip(f"NOT RUN: mount namespaces need Linux and unshare ({missing})")
    if tried.returncode:
        pytest.skip(f"NOT RUN: this machine does not allow mount namespaces ({tried.stderr.strip()})")


def _run(options: str, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    full_command = [*UNSHARE, MOUNT, "sh", options, str(folder), *command]
    return subprocess.run(full_command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)
