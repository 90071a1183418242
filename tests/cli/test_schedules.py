from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskharbor.cli.main import ExitCode
from taskharbor.core.model import WorkerRecord
from taskharbor.schedules import Scheduler, ScheduleSpec

if TYPE_CHECKING:
    from tests.support.console import Console


@pytest.fixture
def nightly(any_console: Console) -> Console:
    spec = ScheduleSpec(name="nightly", cron="0 2 * * *", timezone="Europe/Paris", type="report", payload={"n": 1})
    Scheduler(any_console.driver).put([spec])
    return any_console


def test_schedules_are_listed_with_their_next_time(nightly: Console) -> None:
    [row] = nightly("schedules", "list").rows
    [view] = nightly("schedules", "list", "--json").data["schedules"]

    assert row[:5] == ["nightly", "0 2 * * *", "Europe/Paris", "report", "default"]
    assert row[5] == view["next_at"]
    assert row[8:] == [view["origin"], view["state"]] == ["stored", "active"]
    assert "payload" not in view


def test_a_declared_schedule_is_listed_as_undeclared_without_a_live_worker(nightly: Console) -> None:
    Scheduler(nightly.driver).declare([ScheduleSpec(name="hourly", cron="0 * * * *", type="report")])
    before = nightly("schedules", "list").rows
    message = nightly("schedules", "next", "hourly").err
    heartbeat(nightly, "hourly")
    after = nightly("schedules", "list").rows

    assert [row[8:] for row in before] == [["code", "undeclared"], ["stored", "active"]]
    assert [row[8:] for row in after] == [["code", "active"], ["stored", "active"]]
    assert message == ("schedule hourly is not declared by any live worker; it does not fire until one declares it\n")
    assert nightly("schedules", "next", "hourly").err == ""


def test_schedules_are_deleted_by_name(nightly: Console) -> None:
    Scheduler(nightly.driver).declare([ScheduleSpec(name="hourly", cron="0 * * * *", type="report")])
    heartbeat(nightly, "hourly")

    deleted = nightly("schedules", "delete", "nightly", "hourly", "nightly")

    assert (deleted.code, deleted.out) == (ExitCode.OK, "nightly\nhourly\n")
    assert deleted.err == (
        "schedule hourly is still declared by a live worker; the next worker that declares it and starts "
        "stores it again: remove it from the code, or pause it\n"
    )
    assert nightly.driver.inspector.schedules() == {}
    assert [(each.action, each.target) for each in nightly.audit()] == [
        ("schedules.delete", "hourly"),
        ("schedules.delete", "nightly"),
    ]


def test_a_deleted_schedule_is_printed_as_json(nightly: Console) -> None:
    assert nightly("schedules", "delete", "nightly", "--json").data == {"deleted": ["nightly"]}


def test_the_next_fire_times_are_shown_in_utc_and_local_time(nightly: Console) -> None:
    said = nightly("schedules", "next", "nightly", "--count", "3")
    data = nightly("schedules", "next", "nightly", "--json").data

    lines = [line.split("\t") for line in said.out.splitlines()]
    assert len(lines) == 3
    assert {local.split()[2] for _, local in lines} == {"02:00"}
    assert [utc for utc, _ in lines] == data["fires"][:3]
    assert len(data["fires"]) == 5


def test_a_schedule_runs_now_and_its_next_time_stays(nightly: Console) -> None:
    before = nightly.driver.inspector.schedules()["nightly"].next_at

    view = nightly("schedules", "run", "nightly", "--json").data

    assert (view["type"], view["metadata"]["schedule"]) == ("report", "nightly")
    assert nightly.driver.inspector.schedules()["nightly"].next_at == before
    [entry] = nightly.audit()
    assert (entry.action, entry.target, entry.detail) == ("schedules.run", "nightly", {"job": view["id"]})


def test_a_paused_schedule_stays_paused_until_it_is_resumed(nightly: Console) -> None:
    paused, again = nightly("schedules", "pause", "nightly"), nightly("schedules", "pause", "nightly")
    is_paused = nightly.driver.inspector.schedules()["nightly"].paused_at is not None
    message = nightly("schedules", "next", "nightly").err
    resumed = nightly("schedules", "resume", "nightly", "--json").data

    assert (paused.code, paused.out, paused.err) == (ExitCode.OK, "nightly\n", "")
    assert again.err == "schedule nightly was already paused\n"
    assert is_paused
    assert "is paused" in message
    assert resumed["schedules"][0]["paused_at"] is None
    assert [entry.action for entry in nightly.audit()] == ["schedules.resume", "schedules.pause"]


@pytest.mark.parametrize("verb", ["next", "run", "pause", "resume", "delete"])
def test_an_unknown_schedule_name_suggests_the_nearest(verb: str, nightly: Console) -> None:
    said = nightly("schedules", verb, "nighly")

    assert (said.code, said.out) == (ExitCode.NOT_FOUND, "")
    assert (
        said.err
        == "error: schedule 'nighly' not found; did you mean 'nightly'? 'taskharbor schedules list' shows all\n"
    )
    assert nightly.audit() == []


def test_an_empty_schedule_list_prints_a_message(console: Console) -> None:
    said = console("schedules", "list")

    assert (said.code, said.out, said.err) == (ExitCode.OK, "", "no schedules\n")


def heartbeat(console: Console, schedule: str) -> None:
    """Record a live worker that declares *schedule*."""
    record = WorkerRecord(
        id="w",
        host="h",
        pid=1,
        queues=("default",),
        types=("report",),
        concurrency=1,
        started_at=console.driver.inspector.now(),
        schedules=(schedule,),
    )
    console.driver.maintenance.record_worker(record)


def test_runs_are_listed_with_what_became_of_their_jobs(nightly: Console) -> None:
    job_id = nightly("schedules", "run", "nightly").out.strip()

    [row] = nightly("schedules", "runs", "nightly").rows
    [view] = nightly("schedules", "runs", "nightly", "--json").data["runs"]

    assert (row[0], row[2], row[3]) == ("", job_id, "PENDING")
    assert (view["job_id"], view["fire_time"], view["status"]) == (job_id, None, "PENDING")
    assert nightly("schedules", "runs", "nothing").code == ExitCode.NOT_FOUND
