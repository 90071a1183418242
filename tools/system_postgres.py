"""Run the conformance kit for the PostgreSQL driver on each server installed by the system's packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

INSTALLED = Path("/usr/lib/postgresql")


def main() -> int:
    bindirs = [folder for folder in sorted(INSTALLED.glob("*/bin")) if (folder / "initdb").exists()]
    if not bindirs:
        print(f"NOT RUN: no PostgreSQL found in {INSTALLED}")
    return max([run_kit(bindir) for bindir in bindirs], default=0)


def run_kit(bindir: Path) -> int:
    print(f"on {bindir}", flush=True)
    kit = [sys.executable, "-m", "pytest", "tests/conformance", "-k", "postgres"]
    return subprocess.run(["env", f"PG_BINDIR={bindir}", *kit], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
