"""Plant each bug in turn, and print which tests caught it.

python -m tests.planted [kit|whole-kit|worker|isolation|api|dashboard|cli|core|services|postgres|doctor|stores|…]

By default, all groups are planted.

Every bug must be caught, and every case of the conformance kit must catch a bug. With whole-kit, all
cases are run on each bug, and a case must catch one that at most a few other cases catch: a case
that fails only when most cases fail proves nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Final, cast

from tests.planted.bugs import KIT, Bug, all_bugs
from tests.planted.live import can_plant_live
from tests.planted.planter import BROWSER, Report, import_tests, kit_cases, plant
from tests.planted.servers import shared_server

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from multiprocessing.process import BaseProcess

DEADLINE_SECONDS: Final = 480.0  # far more than any takes, also on a busy machine
EXIT_SECONDS: Final = 5.0
MAX_FAILED_CASES: Final = 25
NICENESS: Final = 10  # a bug waits for its test; the other groups, which run beside it, have tests that measure time
TESTS_PER_CORE: Final = 8
BROWSERS_PER_CORE: Final = 2
WHOLE_KIT: Final = "whole-kit"
FORK: Final = multiprocessing.get_context("fork")

Table = dict[Bug, Report]


FOLDERS: Final = {
    "kit": ("conformance/",),
    "worker": ("worker/",),
    "isolation": ("isolation/", "handler_threads", "health/", "janitor", "runtime", "thread_loop"),
    "api": ("api/",),
    "dashboard": ("dashboard/",),
    "cli": ("cli/",),
    "core": ("core/", "schedules/", "observability/", "testing/"),
    "services": (
        "audit_log",
        "cancellation",
        "client",
        "crypto",
        "diagnosis",
        "enqueuer",
        "installation",
        "operations",
        "service",
        "store_metrics",
        "task",
        "unjoined",
        "watcher",
    ),
    "postgres": ("drivers/postgres/",),
    "doctor": ("doctor/",),
    "stores": (
        "drivers/audit",
        "drivers/backlogs",
        "drivers/interrupts",
        "drivers/migrate",
        "drivers/records",
        "drivers/sqlite/",
        "drivers/transactions/",
        "group_commit/",
        "integrations/",
    ),
    "simulation": ("simulation/",),
    "browser": (f"{BROWSER}/",),
}


def main(parts: Sequence[str]) -> int:
    os.nice(NICENESS)
    if parts == [WHOLE_KIT]:
        bugs = [replace(bug, by=()) for bug in all_bugs() if bug.tests in KIT]
    else:
        folders = tuple(folder for part in parts or FOLDERS for folder in FOLDERS[part])
        bugs = [bug for bug in all_bugs() if bug.tests.startswith(folders)]
    table = plant_all(bugs)
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
    """Plant each bug in its own process.

    Most are planted in modules that were imported once for all. The others are planted while their module
    is imported, in processes that are forked before that.
    """
    bugs = list(bugs)
    with FORK.Pool(1) as pool:  # in a process of its own, because it imports the modules
        is_live = dict(zip(bugs, pool.map(can_plant_live, bugs), strict=True))
    live, others = ([bug for bug in bugs if is_live[bug] is wanted] for wanted in (True, False))
    with shared_server():
        table = plant_each(others) if others else {}
        import_tests(live)
        return table | plant_each(live)


def plant_each(bugs: Iterable[Bug]) -> Table:
    """Plant each bug in a process of its own. One that dies without a report is tried once more.

    They are forked in the only thread of this process: a fork beside other threads may inherit a lock for good.
    """
    waiting, running = deque((bug, 2) for bug in bugs), dict[Connection, Planting]()
    # Many per core: a test that catches a bug often waits for what the bug prevents. A browser is at work, too.
    has_browsers = any(bug.tests.startswith(BROWSER) for bug, _ in waiting)
    max_running = (BROWSERS_PER_CORE if has_browsers else TESTS_PER_CORE) * (os.cpu_count() or 1)
    ended: list[BaseProcess] = []
    table: Table = {}
    while waiting or running:
        while waiting and len(running) < max_running:
            planting = Planting.start(*waiting.popleft())
            running[planting.reader] = planting
        for reader in wait(list(running), timeout=1.0):
            planting = running.pop(cast("Connection", reader))
            report = planting.report()
            ended.append(planting.process)
            if report is None and planting.tries > 1:
                waiting.append((planting.bug, planting.tries - 1))
                continue
            if report is None:
                print(f"DIED without a report: {planting.bug.name}")
            table[planting.bug] = report or Report()  # such a run has caught nothing
        for planting in [each for each in running.values() if time.monotonic() > each.ends_at]:
            print(f"NOT FINISHED within {DEADLINE_SECONDS:.0f} s: {planting.bug.name}")
            del running[planting.reader]
            ended.append(planting.process)
            table[planting.bug] = Report()
            planting.process.kill()
    for process in ended:
        process.join(EXIT_SECONDS)
        process.kill()  # a test left a thread that does not end
    return table


@dataclass(frozen=True, slots=True)
class Planting:
    """A process that runs tests with one bug, and may be started *tries* times."""

    bug: Bug
    tries: int
    process: BaseProcess
    reader: Connection
    ends_at: float

    @classmethod
    def start(cls, bug: Bug, tries: int) -> Planting:
        reader, writer = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_send_report, args=(bug, writer))
        process.start()
        writer.close()  # so that the reader sees the end of the process
        return cls(bug, tries, process, reader, time.monotonic() + DEADLINE_SECONDS)

    def report(self) -> Report | None:
        """Return what the process has sent; None if it has died."""
        try:
            received = self.reader.recv()
        except EOFError:
            return None
        finally:
            self.reader.close()
        return cast("Report", received)


def _send_report(bug: Bug, writer: Connection) -> None:
    writer.send(plant(bug))
    writer.close()


def show(table: Table) -> None:
    width = max(len(bug.name) for bug in table)
    for bug, report in table.items():
        first = report.failed[0] if report.failed else "-"
        print(f"{bug.name:<{width}}  {len(report.failed):>4}  {first}")


def idle_cases(table: Table) -> dict[str, int]:
    """Return the kit's cases that fail for no bug, or only together with many cases, and the smallest such number."""
    narrowest: dict[str, int] = {}
    for report in (report for bug, report in table.items() if bug.tests in KIT):
        for case in report.failed:
            narrowest[case] = min(len(report.failed), narrowest.get(case, len(report.failed)))
    cases = [name for name, _, _ in kit_cases(*{bug.tests for bug in table if bug.tests in KIT})]
    return {case: narrowest.get(case, 0) for case in cases if not 0 < narrowest.get(case, 0) <= MAX_FAILED_CASES}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
