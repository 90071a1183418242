from __future__ import annotations

import pytest

from taskharbor import service


@pytest.fixture
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what should have been refused fail, and not run for ever in the test's own process."""

    def fail(*_: object, **__: object) -> None:
        pytest.fail("it was not refused, and started")

    monkeypatch.setattr(service, "until_signal", fail)


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep whatever the developer has set out of the tests."""
    for name in ("TASKHARBOR_URL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
