from __future__ import annotations

import pytest

from tests.support.schedule_rig import ScheduleRig


@pytest.fixture
def rig() -> ScheduleRig:
    return ScheduleRig()
