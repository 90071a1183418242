"""A store for the isolated tasks of each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import isolated_app as app
from tests.support.isolation_rig import IsolationRig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[IsolationRig]:
    try:
        yield IsolationRig(tmp_path)
    finally:
        app.harbor.close()
