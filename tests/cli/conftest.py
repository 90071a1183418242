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
    """Fail a test whose command should be rejected but starts; it would block the test process."""

    def fail(*_: object, **__: object) -> None:
        pytest.fail("the command was not rejected")

    monkeypatch.setattr(service, "run_until_signal", fail)


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the developer's settings from the environment."""
    for name in ("TASKHARBOR_URL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the test in an empty folder, and remove modules imported from it."""
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
    """Yield a console on a new SQLite file."""
    console = Console(f"sqlite:///{tmp_path}/jobs.db", capsys)
    yield console
    console.driver.close()


@pytest.fixture(params=["sqlite", "postgres"])
def any_console(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Console]:
    """Yield a console on each durable store."""
    console = Console(f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else emptied(), capsys)
    yield console
    console.driver.close()
