"""Fire times of cron expressions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.errors import InvalidRequest
from taskharbor.schedules import Cron, ScheduleSpec, next_fires
from tests.support.cron_oracle import RULES, changes, disagreements, year

PARIS: Final = ZoneInfo("Europe/Paris")
ZONES: Final = [
    "Africa/Cairo",  # at midnight
    "Africa/Casablanca",  # for the time of Ramadan
    "America/Havana",
    "America/New_York",
    "America/Santiago",
    "Antarctica/Troll",  # by two hours
    "Asia/Gaza",
    "Atlantic/Azores",
    "Australia/Lord_Howe",  # by half an hour
    "Europe/Paris",
]


@pytest.mark.parametrize("zone", ZONES)
def test_fire_times_around_offset_changes_match_a_minute_by_minute_search(zone: str) -> None:
    found = list(changes(ZoneInfo(zone), year(2024), year(2025)))

    assert found
    assert [line for change in found for line in disagreements(zone, change, every=timedelta(minutes=211))] == []


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        (datetime(2030, 3, 31, tzinfo=PARIS), ["03:00:00+02:00"]),
        (datetime(2030, 10, 27, tzinfo=PARIS), ["02:30:00+02:00"]),
        (datetime(2030, 6, 1, tzinfo=PARIS), ["02:30:00+02:00"]),
    ],
)
def test_a_fixed_time_fires_once_in_a_gap_or_fold(day: datetime, expected: list[str]) -> None:
    fires = next_fires("30 2 * * *", "Europe/Paris", after=day, count=2)

    local = [fire.astimezone(PARIS) for fire in fires]
    assert [fire.isoformat()[11:] for fire in local if fire.date() == day.date()] == expected


def test_a_search_from_the_second_hour_of_a_fold_skips_the_first() -> None:
    second_pass = datetime(2030, 10, 27, 2, 15, tzinfo=PARIS, fold=1)

    [fire] = next_fires("30 2 * * *", "Europe/Paris", after=second_pass, count=1)

    assert fire == datetime(2030, 10, 28, 2, 30, tzinfo=PARIS)


def test_an_hourly_expression_fires_every_hour_of_a_day_that_has_twenty_five() -> None:
    fires = next_fires("0 * * * *", "Europe/Paris", after=datetime(2030, 10, 26, 23, 59, tzinfo=PARIS), count=26)

    assert {after - before for before, after in pairwise(fires)} == {timedelta(hours=1)}
    assert [fire.astimezone(PARIS).date().day for fire in fires] == [27] * 25 + [28]


def test_fire_times_are_in_utc() -> None:
    [fire] = next_fires("0 12 * * *", "Asia/Tokyo", after=year(2030), count=1)

    assert fire.isoformat() == "2030-01-01T03:00:00+00:00"


def test_a_fire_time_is_strictly_later_than_the_start() -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)

    fires = [next_fires("0 12 * * *", "UTC", after=noon - n * timedelta.resolution, count=1) for n in (0, 1)]

    assert fires == [[noon + timedelta(days=1)], [noon]]


@given(
    cron=st.sampled_from([*RULES]),
    zone=st.sampled_from(ZONES),
    after=st.datetimes(datetime(2024, 1, 1), datetime(2034, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001  hypothesis adds the zone
)
def test_fire_times_are_increasing_whole_minutes(cron: str, zone: str, after: datetime) -> None:
    fires = list(islice(Cron(cron, zone).after(after), 5))

    assert all(before < fire for before, fire in pairwise([after, *fires]))
    assert all(fire.second == fire.microsecond == 0 for fire in fires)


@pytest.mark.parametrize(
    ("cron", "rule"),
    [
        ("0 25 * * *", "its hour '25' is wrong: 0 to 23, "),
        ("61 * * * *", "its minute '61' is wrong: 0 to 59, "),
        ("0 0 0 * *", "its day-of-month '0' is wrong: 1 to 31, L "),
        ("0 0 * FOO *", "its month 'FOO' is wrong: 1 to 12, JAN to DEC, "),
        ("0 0 * * 8", "its day-of-week '8' is wrong: 0 (Sunday) to 7 (again), SUN to SAT, "),
        ("*/0 * * * *", "its minute '*/0' is wrong"),
        ("0 22-2 * * *", "a range must ascend; write two, such as 22-23,0-2"),
        ("0 0 * *", "must have five fields (minute, hour, day-of-month, month, day-of-week), not 4"),
        ("0 0 0 * * *", "not 6"),
        ("", "not 0"),
        ("@daily", "write '0 0 * * *'"),
        (f"{'9' * 5_000} * * * *", "must have at most 200 characters"),
        (None, "must be a str"),
    ],
)
def test_an_invalid_expression_is_refused_with_its_field_and_a_remedy(cron: str, rule: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ScheduleSpec(name="nightly", cron=cron, type="clean")

    [problem] = refused.value.problems
    assert problem.field == "cron"
    assert rule in problem.rule


def test_next_fires_of_an_invalid_expression_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="its hour '25' is wrong"):
        next_fires("0 25 * * *", "UTC", after=year(2030), count=1)
    with pytest.raises(InvalidRequest, match="did you mean 'Asia/Tokyo'"):
        next_fires("0 12 * * *", "Tokyo", after=year(2030), count=1)


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 */29 2 MON#5"])
def test_an_expression_that_never_fires_is_refused(cron: str) -> None:
    with pytest.raises(InvalidRequest, match="no such day ever comes"):
        ScheduleSpec(name="never", cron=cron, type="clean")


def test_the_twenty_ninth_of_february_fires_after_years() -> None:
    [fire] = next_fires("0 0 29 2 *", "UTC", after=year(2097), count=1)

    assert fire == datetime(2104, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("timezone", "way_out"),
    [
        ("Paris", "did you mean 'Europe/Paris'?"),
        ("europe/pariss", "did you mean 'Europe/Paris'?"),
        ("New York", "did you mean 'America/New_York'?"),
        ("Europe", "did you mean"),
        ("../etc", "write one such as"),
        ("", "write one such as"),
        (None, "must be a str"),
    ],
)
def test_an_unknown_time_zone_is_refused_with_the_nearest(timezone: str, way_out: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ScheduleSpec(name="nightly", cron="0 2 * * *", timezone=timezone, type="clean")

    [problem] = refused.value.problems
    assert problem.field == "timezone"
    assert way_out in problem.rule


def test_all_invalid_fields_are_reported_together() -> None:
    with pytest.raises(InvalidRequest) as refused:
        ScheduleSpec(
            name="no name",
            cron="x",
            type="clean",
            missed="never",  # type: ignore[arg-type]
            overlap="maybe",  # type: ignore[arg-type]
            jitter=timedelta(-1),
            window=timedelta(0),
        )

    fields = [problem.field for problem in refused.value.problems]
    assert fields == ["name", "cron", "missed", "overlap", "jitter", "window"]


def test_a_schedule_with_invalid_job_fields_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="max_attempts is 0"):
        ScheduleSpec(name="nightly", cron="0 2 * * *", type="clean", max_attempts=0)
