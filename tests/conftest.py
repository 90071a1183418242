from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskharbor import Harbor
from tests.support.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def harbor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harbor]:
    """A harbor on every store in turn."""
    urls = {"memory": lambda: "memory://", "sqlite": lambda: f"sqlite:///{tmp_path}/jobs.db", "postgres": emptied}
    with Harbor(urls[request.param]()) as made:
        yield made


@pytest.fixture
def quick() -> Iterator[Harbor]:
    """A harbor where the store does not matter."""
    with Harbor("memory://") as made:
        yield made
