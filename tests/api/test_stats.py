"""Series of statistics, types, versions, and the hours of groups of dead letters."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.outcome import Outcome
from taskharbor.core.statistics import HOUR, MINUTE, Metric, StatisticTally, begin_of
from taskharbor.testing.conformance.subject import BOOM
from taskharbor.views import iso_time
from tests.api.test_queues import start_worker
from tests.support.api_rig import problem

if TYPE_CHECKING:
    from tests.support.api_rig import ApiRig


def points(site: ApiRig, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.get(path(query)).json()["points"]
    return found


def path(query: dict[str, str]) -> str:
    return "/v1/stats/timeseries?" + "&".join(f"{name}={value}" for name, value in query.items())


def test_a_series_counts_ended_jobs_of_the_last_hour_by_status_or_queue(site: ApiRig) -> None:
    site.create(queue="mail")
    site.settle(site.take("mail"), Outcome.ack())
    site.roll_up()

    [by_status] = points(site, by="status")
    [by_queue] = points(site, metric="ended", by="queue", step="60")

    assert (by_status["group"], by_status["value"]) == ("SUCCEEDED", 1)
    assert (by_queue["group"], by_queue["value"]) == ("mail", 1)
    assert points(site, queue="other") == []


def test_a_series_of_run_times_has_buckets_and_percentiles(site: ApiRig) -> None:
    minute = begin_of(site.driver.inspector.now(), MINUTE)
    tallies = [StatisticTally(minute, Metric.RUN, "mail", "send", f"{bucket:02}", 50) for bucket in (3, 7)]
    site.driver.maintenance.record_statistics(tallies)
    site.roll_up()

    [point] = points(site, metric="run", by="type", type="send")

    assert (point["at"], point["group"], point["value"]) == (iso_time(minute), "send", 100)
    assert point["buckets"] == [50 if bucket in {3, 7} else 0 for bucket in range(24)]
    # The first half is up to 8 ms, the second from 64 to 128 ms, taken as evenly spread.
    assert [point[f"p{percent}_seconds"] for percent in (50, 95, 99)] == [0.008, 0.1216, 0.12672]


def test_depths_are_those_of_the_last_roll_up(site: ApiRig) -> None:
    for _ in range(3):
        site.create()
    site.take("default")
    site.roll_up()

    waiting, running = (points(site, metric=metric, by="queue") for metric in ("waiting", "running"))

    assert [(point["group"], point["value"]) for point in waiting] == [("default", 2)]
    assert [point["value"] for point in running] == [1]
    assert [point["value"] for point in points(site, metric="arrived")] == [3]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"metric": "wait", "by": "status"}, "by"),
        ({"metric": "waiting", "type": "greet"}, "type"),
        ({"since": "2030-01-01T00:00:00Z", "until": "2029-01-01T00:00:00Z"}, "until"),
        ({"since": "2020-01-01T00:00:00Z"}, "since"),
        ({"step": "5"}, "step"),
        ({"metric": "speed"}, "metric"),
    ],
)
def test_a_series_that_cannot_be_read_is_422_and_names_the_parameter(
    site: ApiRig, query: dict[str, str], pointer: str
) -> None:
    answer = site.get(path(query))

    assert answer.status_code == 422
    assert pointer in str(problem(answer)["errors"])


def test_types_are_those_of_live_workers_and_of_attempts(site: ApiRig) -> None:
    start_worker(site, "default")
    minute = begin_of(site.driver.inspector.now(), MINUTE)
    tallies = [StatisticTally(minute, Metric.ATTEMPTS, "mail", "send", "FAILED", 4)]
    site.driver.maintenance.record_statistics(tallies)
    site.roll_up()

    assert site.get("/v1/types").json()["types"] == [
        {"type": "greet", "workers": 1, "attempts_last_hour": 0},
        {"type": "send", "workers": 0, "attempts_last_hour": 4},
    ]


def test_versions_are_listed_with_their_times(site: ApiRig) -> None:
    site.driver.maintenance.record_statistics([], version="4f2c")

    [version] = site.get("/v1/versions").json()["versions"]

    assert (version["version"], version["first_seen"]) == ("4f2c", version["last_seen"])


def test_groups_of_dead_letters_have_hours_and_the_version_of_their_first_death(site: ApiRig) -> None:
    site.driver.maintenance.record_statistics([], version="4f2c")
    for _ in range(2):
        site.create()
        site.settle(site.take("default"), Outcome.fail("hopeless", failure=BOOM))
    site.driver.maintenance.record_statistics([], version="77aa")
    site.roll_up()

    [group] = site.get("/v1/dead-letters/groups").json()["groups"]

    hour = begin_of(site.driver.inspector.now(), HOUR)
    assert sum(each["count"] for each in group["hours"]) == 2
    assert group["hours"][-1]["hour"] in {iso_time(hour), iso_time(hour - timedelta(hours=1))}
    assert group["first_version"] == "4f2c"
