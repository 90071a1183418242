from __future__ import annotations

import pytest

from tests.schedules.world import World


@pytest.fixture
def world() -> World:
    return World()
