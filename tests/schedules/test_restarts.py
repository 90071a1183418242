"""Schedulers that are killed at random times while others run."""

from __future__ import annotations

import pytest

from tests.support.scheduler_day import CRONS, SchedulerDay, Verdict


@pytest.mark.parametrize("seed", range(3))
def test_two_hundred_restarts_in_a_day_miss_or_repeat_no_fire_time(seed: int) -> None:
    verdict = SchedulerDay(seed).live()

    assert verdict == Verdict(restarts=verdict.restarts, made=verdict.made, missing=0, doubled=0, unwanted=0)
    assert verdict.restarts >= 200
    assert verdict.made > 300 + len(CRONS)
