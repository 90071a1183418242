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
import hypothesis.strategies  # noqa: F401
import psycopg  # noqa: F401
import pytest
import uvicorn.protocols.http.h11_impl  # noqa: F401

from tests.planted.bugs import KIT, Bug

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType, ModuleType

SEEDS: Final = {"simulation/polling": 800, "simulation/sqs": 400}
"""The number of seeds to try before a bug counts as not caught, by mode."""
CHOSEN: Final = {"worker/deaths": "not sqlite and not postgres", "cli/dead": "not postgres"}
"""Files of which some tests are enough, and the pytest expression that selects them."""
QUIET: Final = (
    "-q", "-x", "--tb=no", "-o", "filterwarnings=",
    *(f"-pno:{plugin}" for plugin in ("anyio", "cacheprovider", "randomly", "schemathesis")),
    "--assert=plain",  # pytest rewrites packages with plugins, also TaskHarbor, and would load them without the bug
)  # fmt: skip


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
    """The cases that ran and failed. It is a pytest plugin, and runs the kit's cases itself."""

    ran: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid.rpartition("::")[2])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def run(self, name: str, case: Callable[..., None], arguments: dict[str, Any]) -> None:
        self.ran.append(name)
        try:
            case(**arguments)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001  a bug may raise anything
            self.failed.append(name)


def plant(bug: Bug) -> Report:
    """Run the tests that must catch *bug*. Its module must not be imported yet in this process."""
    assert bug.module not in sys.modules
    gc.disable()  # the process is short
    sys.meta_path.insert(0, Planter(bug))
    report = Report()
    if bug.tests in KIT:
        run_kit(report, bug.tests)
    elif bug.tests in SEEDS:
        run_seeds(report, bug.tests)
    else:
        file = suite(bug)
        chosen = ["-k", CHOSEN[bug.tests]] if bug.tests in CHOSEN else []
        selected = [file, *chosen] if bug.by is None else [bug.by if "::" in bug.by else f"{file}::{bug.by}"]
        with redirect_stdout(io.StringIO()):
            pytest.main([*QUIET, *selected], plugins=[report])
    return report


def suite(bug: Bug) -> str:
    """Return the test file that must catch *bug*."""
    folder, _, name = bug.tests.rpartition("/")
    return str(Path("tests", folder, f"test_{name}.py"))


def run_kit(report: Report, part: str) -> None:
    """Call the kit's cases directly: with pytest, each of hundreds of runs would take three times as long."""
    drivers = importlib.import_module("tests.conformance.test_drivers")
    for name, case in vars(drivers).items():
        home = case.__module__.rpartition(".")[2] if name.startswith("test_") else None
        module = f"conformance/{home}"
        if module == part or (home is not None and module not in KIT and part == "conformance/kit"):
            for variant, arguments in variants(case):
                report.run(name + variant, case, {"subject": drivers.memory(), **arguments})


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
