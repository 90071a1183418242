from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.django_project import project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Django's default database on each store in turn."""
    with project(request.param, tmp_path):
        yield str(request.param)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[None]:
    """Django's default database as a SQLite file."""
    with project("sqlite", tmp_path):
        yield
