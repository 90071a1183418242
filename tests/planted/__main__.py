"""Plant each bug in turn, and print which tests caught it.

python -m tests.planted [kit|worker|api|core|postgres|stores]     by default: all groups

Every bug must be caught. Every case of the conformance kit must also catch a bug that at
most a few other cases catch: a case that fails only when most cases fail proves nothing.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from typing import TYPE_CHECKING, Final

from tests.planted.bugs import KIT, Bug, all_bugs
from tests.planted.planter import Report, plant
from tests.planted.servers import shared_server

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DEADLINE_SECONDS: Final = 240.0
MAX_FAILED_CASES: Final = 25
MEMORY: Final = "taskharbor.drivers.memory."

Table = dict[Bug, Report]


FOLDERS: Final = {
    "kit": ("conformance/",),
    "worker": ("worker/", "simulation/", "janitor", "runtime"),
    "api": ("api/", "cli/", "watcher"),
    "core": ("core/", "schedules/", "client", "crypto", "enqueuer"),
    "postgres": ("drivers/postgres/",),
    "stores": ("drivers/records", "drivers/sqlite/", "drivers/transactions/", "group_commit/"),
}


def main(parts: Sequence[str]) -> int:
    folders = tuple(folder for part in parts or FOLDERS for folder in FOLDERS[part])
    table = plant_all([bug for bug in all_bugs() if bug.tests.startswith(folders)])
    show(table)
    survivors = [bug.name for bug, report in table.items() if not report.failed]
    idle = idle_cases(table)
    for name in survivors:
        print(f"NOT CAUGHT: {name}")
    for case, failed in idle.items():
        print(f"PROVES NOTHING: {case} (its narrowest bug breaks {failed or 'no'} cases)")
    print(f"{len(table) - len(survivors)} of {len(table)} planted bugs caught; {len(idle)} kit cases prove nothing")
    return 1 if survivors or idle else 0


def plant_all(bugs: Iterable[Bug]) -> Table:
    """Plant each bug in its own process, forked before the bug's module is imported."""
    early, late = list[Bug](), list[Bug]()
    for bug in bugs:
        (late if bug.module.startswith(MEMORY) and bug.tests in KIT else early).append(bug)
    with shared_server():
        table = plant_each(early) if early else {}
        if late:
            importlib.import_module("taskharbor.testing.conformance")  # once, not in hundreds of processes
            table |= plant_each(late)
    return table


def plant_each(bugs: Iterable[Bug]) -> Table:
    fork = multiprocessing.get_context("fork")
    # Several per core: a pool needs time to replace a finished process, and many tests wait.
    with fork.Pool(5 * (os.cpu_count() or 1), maxtasksperchild=1) as pool:
        pending = [(bug, pool.apply_async(plant, (bug,))) for bug in bugs]
        table = {}
        for bug, result in pending:
            try:
                table[bug] = result.get(DEADLINE_SECONDS)
            except multiprocessing.TimeoutError:
                table[bug] = Report()  # a run that timed out has caught nothing
                print(f"NOT FINISHED within {DEADLINE_SECONDS:.0f} s: {bug.name}")
        return table


def show(table: Table) -> None:
    width = max(len(bug.name) for bug in table)
    for bug, report in table.items():
        first = report.failed[0] if report.failed else "-"
        print(f"{bug.name:<{width}}  {len(report.failed):>4}  {first}")


def idle_cases(table: Table) -> dict[str, int]:
    """Return the kit's cases that fail for no bug, or only together with many cases, and the smallest such number."""
    of_the_kit = [report for bug, report in table.items() if bug.tests in KIT]
    narrowest: dict[str, int] = {}
    for report in of_the_kit:
        for case in report.failed:
            narrowest[case] = min(len(report.failed), narrowest.get(case, len(report.failed)))
    ran = {case for report in of_the_kit for case in report.ran}
    return {case: narrowest.get(case, 0) for case in sorted(ran) if not 0 < narrowest.get(case, 0) <= MAX_FAILED_CASES}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
