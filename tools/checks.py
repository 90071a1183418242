"""Run groups of checks, several at a time, and print how long each took.

python -m tools.checks [GROUP ...]     by default: all groups

Groups run in parallel because they mostly wait, for example for leases to expire. The output
of a group is printed when it has finished.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
BIN: Final = Path(sys.executable).parent
SLOW_AFTER: Final = timedelta(seconds=120)
PARALLEL_GROUPS: Final = 3
PLANTED: Final = ("kit", "worker", "api", "core", "postgres", "stores")
MULTI_CORE: Final = (*(f"planted-{part}" for part in PLANTED), "planted-sql")
"""Groups that use every core, so they run one at a time."""

OTHER_GROUPS: Final = (
    "tests/api",
    "tests/cli",
    "tests/conformance",
    "tests/delivery",
    "tests/drivers/postgres",
    "tests/drivers/transactions",
    "tests/emulators",
    "tests/parity",
    "tests/planted",
    "tests/test_tasks.py",
    "tests/test_transactions.py",
    "tests/testing",
    "tests/typing",
    "tests/worker",
)
FAULTS: Final = [
    f"tests/drivers/postgres/test_{each}.py" for each in ("server_crash", "connection_loss", "network_faults", "notify")
]
LOADS: Final = [
    f"tests/drivers/postgres/test_{each}.py"
    for each in ("bulk_insert", "errors", "failover", "outage", "partitions", "retention")
]
PLANS: Final = "tests/drivers/postgres/test_plans.py"
SIMULATION: Final = "tests/testing/test_simulation.py"
CRASHES: Final = "tests/worker/test_crashes.py"
DIFFERENCES: Final = "tests/parity/test_differences.py"
ENDINGS: Final = [
    f"tests/worker/test_{each}.py"
    for each in ("deaths", "leases", "outcomes", "shutdown", "stopping", "store_errors", "timeouts", "unknown_types")
]


def pytest(*paths: str, without: Iterable[str] = ()) -> Sequence[Sequence[str]]:
    return [["pytest", *paths, *(f"--ignore={each}" for each in without)]]


GROUPS: Final[Mapping[str, Sequence[Sequence[str]]]] = MappingProxyType(
    {
        "lint": [["ruff", "check", "."], ["ruff", "format", "--check", "."]],
        "types": [["mypy"]],
        "contracts": [["lint-imports", "--no-logo"]],
        "words": [["python", "-m", "tools.prose"]],
        **{f"planted-{part}": [["python", "-m", "tests.planted", part]] for part in PLANTED},
        "planted-sql": [["python", "-m", "tests.planted.sql"]],
        "behaviour": pytest("tests", without=OTHER_GROUPS),
        "simulation": pytest(SIMULATION),
        "stores": pytest("tests/conformance"),
        "differences": pytest(DIFFERENCES),
        "parity": pytest("tests/parity", without=[DIFFERENCES]),
        "postgres": pytest("tests/drivers/postgres", without=[*FAULTS, *LOADS, PLANS]),
        "loads": pytest(*LOADS),
        "plans": pytest(PLANS),
        "faults": pytest(*FAULTS),
        "system": [["python", "-m", "tools.system_postgres"]],
        "worker": pytest("tests/worker", without=[CRASHES, *ENDINGS]),
        "endings": pytest(*ENDINGS),
        "crashes": pytest(CRASHES),
        "harbor": pytest("tests/test_tasks.py", "tests/test_transactions.py", "tests/testing", without=[SIMULATION]),
        "transactions": pytest("tests/drivers/transactions", "tests/typing"),
        "cli": pytest("tests/cli"),
        "delivery": pytest("tests/delivery"),
        "emulators": pytest("tests/emulators"),
        "api": pytest("tests/api"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    group: str
    passed: bool
    took: timedelta

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "FAILED"
        warning = f"  !!! SLOW: over {SLOW_AFTER.total_seconds():.0f} s" if self.took > SLOW_AFTER else ""
        return f"{self.group:<17}{self.took.total_seconds():>8.1f} s  {verdict}{warning}"


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        print(f"unknown group: {', '.join(unknown)}; choose from {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    # A failed group does not stop the others, so that one run shows all failures.
    start = time.monotonic()
    selected = names or [*GROUPS]
    runs = [run_group(name) for name in selected if name in MULTI_CORE]
    with ThreadPoolExecutor(PARALLEL_GROUPS) as pool:
        runs += pool.map(run_group, [name for name in selected if name not in MULTI_CORE])
    print_table(runs, timedelta(seconds=time.monotonic() - start))
    return 0 if all(run.passed for run in runs) else 1


def run_group(name: str) -> Run:
    start = time.monotonic()
    commands = [run_command(command) for command in GROUPS[name]]
    passed = all(done.returncode == 0 for done in commands)
    run = Run(group=name, passed=passed, took=timedelta(seconds=time.monotonic() - start))
    print(f"\n=== {name}\n{''.join(done.stdout for done in commands)}--- {run}", flush=True)
    return run


def run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    program, *arguments = command
    return subprocess.run(
        [BIN / program, *arguments],
        cwd=ROOT,
        check=False,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def print_table(runs: Iterable[Run], took: timedelta) -> None:
    print()
    for run in runs:
        print(run)
    print(f"{'total':<17}{took.total_seconds():>8.1f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
