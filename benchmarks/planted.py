"""Plant the bugs that take too long for every test run.

They are those in the SQL of both stores, those that simulations catch, those that a browser shows, and those of the kit
with all of its cases.
"""

from __future__ import annotations

import subprocess
import sys

COMMANDS = {
    "SQL": ["tests.planted.sql"],
    "kit": ["tests.planted", "whole-kit"],
    "simulation": ["tests.planted", "simulation"],
    "browser": ["tests.planted", "browser"],
}


def figures() -> dict[str, object]:
    """Return how many bugs were caught. One that is not raises, with the output that names it."""
    found: dict[str, object] = {}
    for name, (module, *arguments) in COMMANDS.items():
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], check=False, text=True, stdout=subprocess.PIPE, timeout=1_800
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode:
            raise RuntimeError(done.stdout[-2_000:])
        found[name] = lines[-1]
    return found
