"""Run groups of checks, several at a time, and print how long each took and how much of a processor's time.

python -m tools.checks [GROUP ...]     by default: all groups

Groups run in parallel because they mostly wait, for example for leases to expire. The output
of a group is printed when it has finished.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
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
FAILURE_LINES: Final = 6
FAILURE_WIDTH: Final = 160
PLANTED: Final = (
    "kit", "worker", "isolation", "api", "dashboard", "cli", "core", "services", "postgres", "doctor", "stores",
)  # fmt: skip
ONE_AT_A_TIME: Final = frozenset(f"planted-{part}" for part in PLANTED)
"""Groups of many processes, most of which wait. One of them runs beside the others. `benchmarks.planted` plants the
other bugs."""

OTHER_GROUPS: Final = (
    "tests/api",
    "tests/cli",
    "tests/conformance",
    "tests/core",
    "tests/dashboard",
    "tests/delivery",
    "tests/deployment",
    "tests/docs",
    "tests/doctor",
    "tests/drivers/postgres",
    "tests/drivers/transactions",
    "tests/emulators",
    "tests/integrations",
    "tests/isolation",
    "tests/newcomer",
    "tests/parity",
    "tests/planted",
    "tests/release",
    "tests/repo",
    "tests/schedules",
    "tests/test_tasks.py",
    "tests/test_transactions.py",
    "tests/testing",
    "tests/typing",
    "tests/worker",
)
FAULTS: Final = [
    f"tests/drivers/postgres/test_{each}.py"
    for each in ("asynchronous_claims", "server_crash", "connection_loss", "network_faults", "notify")
]
LOADS: Final = [
    f"tests/drivers/postgres/test_{each}.py"
    for each in ("bulk_insert", "errors", "failover", "outage", "partitions", "retention")
]
PLANS: Final = "tests/drivers/postgres/test_plans.py"
SIMULATION: Final = "tests/testing/test_simulation.py"
CRASHES: Final = "tests/worker/test_crashes.py"
DIFFERENCES: Final = "tests/parity/test_differences.py"
DEATHS: Final = [
    f"tests/worker/test_{each}.py" for each in ("deaths", "leases", "outcomes", "store_errors", "unknown_types")
]
STOPS: Final = [f"tests/worker/test_{each}.py" for each in ("shutdown", "stopping", "timeouts")]
DEV: Final = [
    f"tests/cli/test_{each}.py"
    for each in ("declared_schedules", "dev", "outage_log", "supervisor", "supervisor_processes")
]
SERVICES: Final = [f"tests/cli/test_{each}.py" for each in ("health", "sqs", "sqs_errors", "startup", "worker")]
TUTORIALS: Final = "tests/docs/test_tutorials.py"
PAGES_OF_STORES: Final = [
    f"tests/dashboard/test_{each}.py"
    for each in ("attention", "embedding", "foundation", "reasons", "sessions", "strips")
]
INCIDENTS: Final = [f"tests/dashboard/test_{each}.py" for each in ("bulk_limits", "incidents", "large_stores")]
SCREENS: Final = [f"tests/dashboard/test_{each}.py" for each in ("screens", "walks")]
KIT: Final = "tests/conformance/test_drivers.py"


def pytest(*paths: str, without: Iterable[str] = ()) -> Sequence[Sequence[str]]:
    return [["pytest", *paths, *(f"--ignore={each}" for each in without)]]


GROUPS: Final[Mapping[str, Sequence[Sequence[str]]]] = MappingProxyType(
    {
        "lint": [["ruff", "check", "."], ["ruff", "format", "--check", "."]],
        "types": [["mypy"]],
        "contracts": [["lint-imports", "--no-logo"]],
        "words": [["python", "-m", "tools.prose"]],
        **{f"planted-{part}": [["python", "-m", "tests.planted", part]] for part in PLANTED},
        # Long ones first, so that the last to end are short.
        "simulation": pytest(SIMULATION),
        "differences": pytest(DIFFERENCES),
        "behaviour": pytest("tests", without=OTHER_GROUPS),
        "stores": pytest(KIT),
        "postgres": pytest("tests/drivers/postgres", without=[*FAULTS, *LOADS, PLANS]),
        "services": pytest(*SERVICES),
        "newcomer": pytest("tests/newcomer"),
        "docs": pytest("tests/docs", without=[TUTORIALS]),
        "release": pytest("tests/deployment", "tests/release"),
        "tutorials": pytest(TUTORIALS),
        "isolation": pytest("tests/isolation"),
        "deaths": pytest(*DEATHS),
        "loads": pytest(*LOADS),
        "core": pytest("tests/core", "tests/repo", "tests/schedules"),
        "crashes": pytest(CRASHES),
        "worker": pytest("tests/worker", without=[CRASHES, *DEATHS, *STOPS]),
        "faults": pytest(*FAULTS),
        "doctor": pytest("tests/doctor"),
        "api": pytest("tests/api"),
        "cli": pytest("tests/cli", without=[*DEV, *SERVICES]),
        "stops": pytest(*STOPS),
        "previous": pytest("tests/conformance", without=[KIT]),
        "dashboard": pytest("tests/dashboard", without=[*PAGES_OF_STORES, *INCIDENTS, *SCREENS]),
        "dashboard-screens": pytest(*SCREENS),
        "dashboard-http": pytest(*PAGES_OF_STORES),
        "dashboard-incidents": pytest(*INCIDENTS),
        "dev": pytest(*DEV),
        "delivery": pytest("tests/delivery"),
        "plans": pytest(PLANS),
        "system": [["python", "-m", "tools.system_postgres"]],
        "harbor": pytest("tests/test_tasks.py", "tests/test_transactions.py", "tests/testing", without=[SIMULATION]),
        "parity": pytest("tests/parity", without=[DIFFERENCES]),
        "transactions": pytest("tests/drivers/transactions", "tests/typing"),
        "emulators": pytest("tests/emulators"),
        "integrations": pytest("tests/integrations"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    group: str
    passed: bool
    took: timedelta
    cpu: timedelta
    """The processor time of its commands and their descendants. Unlike *took*, other groups hardly change it."""
    output: str

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "FAILED"
        warning = f"  !!! SLOW: over {SLOW_AFTER.total_seconds():.0f} s" if self.took > SLOW_AFTER else ""
        times = f"{self.took.total_seconds():>8.1f} s {self.cpu.total_seconds():>7.1f} s CPU"
        return f"{self.group:<17}{times}  {verdict}{warning}"


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        print(f"unknown group: {', '.join(unknown)}; choose from {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    # A failed group does not stop the others, so that one run shows all failures.
    start = time.monotonic()
    with ThreadPoolExecutor(1) as planting, ThreadPoolExecutor(PARALLEL_GROUPS) as others:
        pools = {name: planting if name in ONE_AT_A_TIME else others for name in names or GROUPS}
        started = [pool.submit(run_group, name) for name, pool in pools.items()]
        try:
            runs = [each.result() for each in started]
        except KeyboardInterrupt:
            for each in started:
                each.cancel()
            raise
    print_table(runs, timedelta(seconds=time.monotonic() - start))
    return 0 if all(run.passed for run in runs) else 1


def run_group(name: str) -> Run:
    start = time.monotonic()
    commands = [run_command(command) for command in GROUPS[name]]
    run = Run(
        group=name,
        passed=all(done.passed for done in commands),
        took=timedelta(seconds=time.monotonic() - start),
        cpu=sum((done.cpu for done in commands), timedelta()),
        output="".join(done.output for done in commands),
    )
    print(f"\n=== {name}\n{run.output}--- {run}", flush=True)
    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    passed: bool
    cpu: timedelta
    output: str


def run_command(command: Sequence[str]) -> Command:
    program, *arguments = command
    # Without bytecode, each of hundreds of processes would compile TaskHarbor anew.
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # noqa: TID251  children inherit the rest
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen([BIN / program, *arguments], cwd=ROOT, env=environ, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)  # reports the times of this command alone
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        cpu = timedelta(seconds=usage.ru_utime + usage.ru_stime)
        return Command(passed=not process.returncode, cpu=cpu, output=output.read())


def print_table(runs: Sequence[Run], took: timedelta) -> None:
    print()
    for run in runs:
        print(run)
    print(f"{'total':<17}{took.total_seconds():>8.1f} s {sum(each.cpu.total_seconds() for each in runs):>7.1f} s CPU")
    # Last, because the end of a long log is what a person sees first.
    for run in runs:
        if not run.passed:
            print(f"\n{run.group} failed:", *failures(run.output), sep="\n  ")


def failures(output: str) -> Sequence[str]:
    """Return the lines of *output* that name what failed, or its last lines."""
    lines = output.splitlines()
    named = [line for line in lines if line.startswith(("FAILED ", "ERROR ", "NOT CAUGHT", "PROVES NOTHING"))]
    return [line[:FAILURE_WIDTH] for line in (named or lines)[-FAILURE_LINES:]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
