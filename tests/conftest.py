from __future__ import annotations

import shutil
import tempfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from taskharbor import Harbor
from tests.support.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Without limits on time, which properties would exceed on a busy machine. `tests.planted` has a profile of its own.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if settings.get_current_profile_name() == "default":
    settings.load_profile("tests")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give each run a temporary folder of its own.

    pytest keeps the folders of the last runs side by side, and removes the older ones at the end. Runs that end at
    the same time remove the same folder, and one of them fails because it is not empty.
    """
    if config.option.basetemp is None:
        folder = tempfile.mkdtemp(prefix="t")  # short, because it is part of the paths of sockets
        config.option.basetemp = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


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
