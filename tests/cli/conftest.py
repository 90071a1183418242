from __future__ import annotations

import sys
from importlib import invalidate_caches
from typing import TYPE_CHECKING

import pytest

from taskharbor import service
from tests.support.console import Console
from tests.support.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what should have been refused fail, and not run for ever in the test's own process."""

    def fail(*_: object, **__: object) -> None:
        pytest.fail("it was not refused, and started")

    monkeypatch.setattr(service, "run_until_signal", fail)


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep whatever the developer has set out of the tests."""
    for name in ("TASKHARBOR_URL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start in an empty folder, and forget what was imported from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    invalidate_caches()
    yield
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path.resolve())):
            del sys.modules[name]


@pytest.fixture
def console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Console]:
    """Give a command line on a new SQLite file."""
    console = Console(f"sqlite:///{tmp_path}/jobs.db", capsys)
    yield console
    console.driver.close()


@pytest.fixture(params=["sqlite", "postgres"])
def any_console(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Console]:
    """Give a command line on each durable store."""
    console = Console(f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else emptied(), capsys)
    yield console
    console.driver.close()
