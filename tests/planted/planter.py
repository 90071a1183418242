"""Insert one bug into TaskHarbor while it is imported, and run tests on the result. No file is changed."""

from __future__ import annotations

import asyncio  # noqa: F401  loaded once before the forks, like the unused imports below
import gc
import importlib
import importlib.util
import io
import logging
import sqlite3  # noqa: F401
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click  # noqa: F401
import fastapi  # noqa: F401
import httpx  # noqa: F401
import hypothesis.strategies
import psycopg  # noqa: F401
import pytest
import uvicorn.protocols.http.h11_impl  # noqa: F401

from tests.planted.bugs import KIT, Bug
from tests.planted.files import plant_files
from tests.planted.live import plant_live

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from types import CodeType, ModuleType

SEEDS: Final = {"simulation/polling": 1_300, "simulation/sqs": 400}
"""The number of seeds to try before a bug counts as not caught, by mode."""
CHOSEN: Final = {"worker/deaths": "not sqlite and not postgres", "cli/dead": "not postgres"}
"""Files of which some tests are enough, and the pytest expression that selects them."""
BROWSER: Final = "browser"
"""The folder of bugs that tests of the dashboard catch in a browser."""
QUIET: Final = (
    "-q", "-x", "--tb=no", "-o", "filterwarnings=",
    *(f"-pno:{plugin}" for plugin in ("anyio", "cacheprovider", "randomly", "schemathesis", "unraisableexception")),
    "--assert=plain",  # pytest rewrites packages with plugins, also TaskHarbor, and would load them without the bug
)  # fmt: skip

# The same examples each time, so that no bug is caught by luck. The first failing one is enough: searching for the
# simplest one takes most of the time.
hypothesis.settings.register_profile(
    "planted",
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    derandomize=True,
    report_multiple_bugs=False,
    database=None,
    deadline=None,  # an example that takes long on a busy machine shows no bug
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("planted")


class Plantable(Protocol):
    """A change of one module's source."""

    @property
    def module(self) -> str: ...

    def planted_in(self, source: str) -> str: ...


class Planter:
    """An import hook that inserts the bug into its module."""

    def __init__(self, bug: Plantable) -> None:
        self._bug = bug

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002  the signature is Python's
    ) -> ModuleSpec | None:
        if fullname != self._bug.module or path is None:
            return None
        file = str(Path(path[0]) / f"{fullname.rpartition('.')[2]}.py")
        return importlib.util.spec_from_file_location(fullname, file, loader=BuggyLoader(fullname, file, self._bug))


class BuggyLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, bug: Plantable) -> None:
        super().__init__(fullname, path)
        self._bug = bug

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002  the signature is Python's
        source = Path(self.path).read_text()
        return compile(self._bug.planted_in(source), self.path, "exec", dont_inherit=True)


@dataclass(slots=True, eq=False)
class Report:
    """The cases that failed. It is a pytest plugin, and runs the kit's cases itself."""

    failed: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid.rpartition("::")[2])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def run(self, name: str, case: Callable[..., None], arguments: dict[str, Any]) -> None:
        try:
            case(**arguments)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001  a bug may raise anything
            self.failed.append(name)


def plant(bug: Bug) -> Report:
    """Run the tests that must catch *bug*. If its module is imported, `can_plant_live` must have allowed that."""
    gc.disable()  # the process is short
    if bug.files:
        plant_files(bug.files)
    if bug.module in sys.modules:
        plant_live(bug)
    elif bug.module:
        sys.meta_path.insert(0, Planter(bug))
    report = Report()
    if bug.tests in KIT:
        run_kit(report, bug)
    elif bug.tests in SEEDS:
        run_seeds(report, bug.tests)
    else:
        chosen = ["-k", CHOSEN[bug.tests]] if bug.tests in CHOSEN else []
        selected = node_ids(bug) or [suite(bug), *chosen]
        with redirect_stdout(io.StringIO()):
            pytest.main([*QUIET, *selected], plugins=[report])
    return report


def suite(bug: Bug) -> str:
    """Return the test file that must catch *bug*."""
    folder, _, name = bug.tests.rpartition("/")
    return str(Path("tests", "dashboard" if folder == BROWSER else folder, f"test_{name}.py"))


def node_ids(bug: Bug) -> list[str]:
    """Return the tests that are named for *bug*."""
    return [by if "::" in by else f"{suite(bug)}::{by}" for by in bug.by]


def import_tests(bugs: Collection[Bug]) -> None:
    """Import the tests of these bugs, and so the modules that they test."""
    if any(bug.tests in KIT for bug in bugs):
        importlib.import_module("tests.conformance.test_drivers")
    if any(bug.tests in SEEDS for bug in bugs):
        importlib.import_module("taskharbor.testing.simulation")
    others = [bug for bug in bugs if bug.tests not in KIT and bug.tests not in SEEDS]
    for file in sorted({each.partition("::")[0] for bug in others for each in [suite(bug), *node_ids(bug)]}):
        importlib.import_module(file.removesuffix(".py").replace("/", "."))


def run_kit(report: Report, bug: Bug) -> None:
    """Call the kit's cases directly: with pytest, each of hundreds of runs would take three times as long."""
    drivers = importlib.import_module("tests.conformance.test_drivers")
    for name, case, arguments in kit_cases(bug.tests):
        if not bug.by or name in bug.by:
            report.run(name, case, {"subject": drivers.memory(), **arguments})


def kit_cases(*parts: str) -> Iterator[tuple[str, Callable[..., None], dict[str, Any]]]:
    """Yield each case of those parts of the kit, with its id and parameters."""
    kit = importlib.import_module("taskharbor.testing.conformance")
    for name, case in vars(kit).items():
        if name.startswith("test_"):
            home = f"conformance/{case.__module__.rpartition('.')[2]}"
            if (home if home in KIT else "conformance/kit") in parts:
                yield from ((name + variant, case, arguments) for variant, arguments in variants(case))


def run_seeds(report: Report, kind: str) -> None:
    """Run simulations until one has a violation."""
    simulation = importlib.import_module("taskharbor.testing.simulation")
    logging.disable(logging.CRITICAL)
    for seed in range(SEEDS[kind]):
        report.run(f"seed {seed}", check_history, {"history": simulation.simulate(seed, kind.rpartition("/")[2])})
        if report.failed:
            return


def check_history(history: Any) -> None:
    assert not history.violations


def variants(case: Callable[..., None]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parameters that pytest would call *case* with, and their ids."""
    for mark in getattr(case, "pytestmark", ()):
        name, values = mark.args
        yield from ((f"[{value}]", {name: value}) for value in values)
        return
    yield "", {}
