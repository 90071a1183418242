from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep whatever the developer has set out of the tests."""
    for name in ("TASKHARBOR_URL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
