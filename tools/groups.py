"""Run groups of checks one after the other, and say how long each took.

python -m tools.groups [GROUP ...]     without a name: all of them
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
BIN: Final = Path(sys.executable).parent
SLOW: Final = timedelta(seconds=120)

APART: Final = (
    "tests/api",
    "tests/cli",
    "tests/conformance",
    "tests/delivery",
    "tests/emulators",
    "tests/harbor",
    "tests/joining",
    "tests/parity",
    "tests/planted",
    "tests/typing",
    "tests/worker",
)
POSTGRES: Final = sorted(f"tests/{each.name}" for each in (ROOT / "tests").glob("test_postgres*.py"))
FAULTS: Final = [f"tests/test_postgres_{each}.py" for each in ("crash", "cuts", "faults", "listening")]
GROUPS: Final[Mapping[str, Sequence[Sequence[str]]]] = MappingProxyType(
    {
        "lint": [["ruff", "check", "."], ["ruff", "format", "--check", "."]],
        "types": [["mypy"]],
        "contracts": [["lint-imports", "--no-logo"]],
        "behaviour": [["pytest", "tests", *(f"--ignore={each}" for each in APART), "--ignore-glob=*test_postgres*"]],
        "stores": [["pytest", "tests/conformance", "tests/parity"]],
        "postgres": [["pytest", *(each for each in POSTGRES if each not in FAULTS)]],
        "faults": [["pytest", *FAULTS]],
        "system": [["python", "-m", "tools.system_postgres"]],
        "worker": [["pytest", "tests/worker"]],
        "harbor": [["pytest", "tests/harbor", "tests/joining", "tests/typing"]],
        "cli": [["pytest", "tests/cli"]],
        "delivery": [["pytest", "tests/delivery"]],
        "emulators": [["pytest", "tests/emulators"]],
        "api": [["pytest", "tests/api"]],
        "planted": [["python", "-m", "tests.planted"]],
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    group: str
    passed: bool
    took: timedelta

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "FAILED"
        warning = f"  !!! SLOW: over {SLOW.total_seconds():.0f} s" if self.took > SLOW else ""
        return f"{self.group:<12}{self.took.total_seconds():>8.1f} s  {verdict}{warning}"


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        print(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    # A failed group does not stop the others: a person wants to see everything that is wrong.
    runs = [run_group(name) for name in names or GROUPS]
    print_table(runs)
    return 0 if all(run.passed for run in runs) else 1


def run_group(name: str) -> Run:
    print(f"\n=== {name}", flush=True)
    start = time.monotonic()
    results = [run_command(command) for command in GROUPS[name]]
    run = Run(group=name, passed=all(results), took=timedelta(seconds=time.monotonic() - start))
    print(f"--- {run}", flush=True)
    return run


def run_command(command: Sequence[str]) -> bool:
    program, *arguments = command
    return subprocess.run([BIN / program, *arguments], cwd=ROOT, check=False).returncode == 0


def print_table(runs: Iterable[Run]) -> None:
    print()
    for run in runs:
        print(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
