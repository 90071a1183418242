from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import pytest

from taskharbor.core.clocks import next_offset_change, unambiguous_instant, wall_time

PARIS: Final = ZoneInfo("Europe/Paris")
LORD_HOWE: Final = ZoneInfo("Australia/Lord_Howe")
APIA: Final = ZoneInfo("Pacific/Apia")
FORWARD: Final = datetime(2030, 3, 31, 1, tzinfo=UTC)
BACK: Final = datetime(2030, 10, 27, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "wall", "moment"),
    [
        (PARIS, "2030-01-01T12:00", "2030-01-01T11:00"),
        (PARIS, "2030-03-31T01:59", "2030-03-31T00:59"),
        (PARIS, "2030-03-31T02:00", "2030-03-31T01:00"),
        (PARIS, "2030-03-31T02:59", "2030-03-31T01:00"),
        (PARIS, "2030-03-31T03:00", "2030-03-31T01:00"),
        (PARIS, "2030-10-27T02:30", "2030-10-27T00:30"),
        (PARIS, "2030-10-27T03:00", "2030-10-27T02:00"),
        (LORD_HOWE, "2030-04-07T01:45", "2030-04-06T14:45"),
        (APIA, "2011-12-30T12:00", "2011-12-30T10:00"),  # a whole day was skipped
        (UTC, "2030-03-31T02:30", "2030-03-31T02:30"),
    ],
)
def test_a_wall_time_maps_to_one_instant(zone: ZoneInfo, wall: str, moment: str) -> None:
    assert unambiguous_instant(zone, datetime.fromisoformat(wall)) == datetime.fromisoformat(moment).replace(tzinfo=UTC)


@pytest.mark.parametrize("change", [FORWARD, BACK])
@pytest.mark.parametrize("before", [timedelta(seconds=1), timedelta(seconds=0.5), timedelta(days=100)])
@pytest.mark.parametrize("later", [timedelta(0), timedelta(minutes=7), timedelta(days=9)])
def test_an_offset_change_is_found_to_the_second(change: datetime, before: timedelta, later: timedelta) -> None:
    assert next_offset_change(PARIS, change - before, change + later) == change


def test_no_offset_change_is_found_outside_the_interval() -> None:
    assert next_offset_change(PARIS, FORWARD, FORWARD + timedelta(days=100)) is None
    assert next_offset_change(PARIS, FORWARD - timedelta(days=9), FORWARD - timedelta.resolution) is None


def test_two_instants_in_a_fold_have_the_same_wall_time() -> None:
    shown = [wall_time(PARIS, BACK + n * timedelta(minutes=30)).isoformat() for n in (-1, 1)]

    assert shown == ["2030-10-27T02:30:00"] * 2
