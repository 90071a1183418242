"""Queues, schedules, workers and statistics."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import MemoryDriver
from taskharbor.core.model import WorkerRecord
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.drivers.memory.inspector import MemoryInspector
from taskharbor.schedules import Scheduler, ScheduleSpec
from taskharbor.testing.clock import ManualClock
from tests.support.api_rig import opened, problem

if TYPE_CHECKING:
    from taskharbor.core.results import QueueStats
    from tests.support.api_rig import ApiRig

NIGHTLY = {"cron": "0 2 * * *", "timezone": "Europe/Paris", "type": "reports.nightly", "payload": {"n": 1}}


def start_worker(site: ApiRig, *queues: str, schedules: tuple[str, ...] = ()) -> None:
    record = WorkerRecord(
        id="w",
        host="h",
        pid=7,
        queues=queues,
        types=("greet",),
        concurrency=4,
        started_at=site.driver.inspector.now(),
        schedules=schedules,
    )
    site.driver.maintenance.record_worker(record)


def test_queues_are_listed_with_their_counts(site: ApiRig) -> None:
    site.create()
    site.create(queue="mail")
    site.roll_up()

    queues = site.get("/v1/queues").json()["queues"]

    assert [(each["name"], each["counts"]["PENDING"]) for each in queues] == [("default", 1), ("mail", 1)]
    assert site.get("/v1/queues/mail").json()["name"] == "mail"


def test_an_unknown_queue_is_not_found(site: ApiRig) -> None:
    missing = site.get("/v1/queues/nothing")

    assert missing.status_code == 404
    assert problem(missing)["code"] == "queue-not-found"


def test_a_paused_queue_lets_no_job_start_until_it_is_resumed(site: ApiRig) -> None:
    site.create()

    paused = site.post("/v1/queues/default/pause")

    assert (paused.status_code, paused.json()["paused_by"]) == (200, "anonymous")
    with pytest.raises(ValueError, match="not enough values"):
        site.take()
    assert site.post("/v1/queues/default/resume").json()["paused_at"] is None
    assert site.take().job.queue == "default"


def test_a_pause_has_a_reason_and_an_end(site: ApiRig) -> None:
    paused = site.post("/v1/queues/mail/pause", {"reason": "the server is down", "for": 1800}).json()

    [queue] = site.driver.inspector.queues()
    assert queue.paused_at is not None
    assert queue.paused_until == queue.paused_at + timedelta(minutes=30)
    assert paused["paused_reason"] == "the server is down"
    assert paused["paused_until"] is not None
    [entry] = site.audited()
    assert entry.detail == {"why": "the server is down", "for": "1800 s"}
    assert site.post("/v1/queues/mail/pause", {"lasts": 5}).status_code == 422


def test_a_queue_shows_its_workers_capacity_and_rates() -> None:
    clock = ManualClock()
    with opened(MemoryDriver(clock=clock)) as site:
        for _ in range(10):
            site.create(queue="mail")
        for _ in range(5):
            site.settle(site.take("mail"), Outcome.ack())
        site.roll_up()
        clock.advance(timedelta(minutes=1))
        start_worker(site, "mail")

        [listed] = site.get("/v1/queues").json()["queues"]

        assert (listed["workers"], listed["capacity"]) == (1, 4)
        assert (listed["arrived_per_minute"], listed["ended_per_minute"]) == (2.0, 1.0)
        assert listed["drained_in_seconds"] is None
        assert site.get("/v1/queues/mail").json() == listed


def test_a_queue_may_be_paused_before_it_has_a_job_and_twice(site: ApiRig) -> None:
    assert site.post("/v1/queues/later/pause").status_code == 200
    assert site.post("/v1/queues/later/pause").status_code == 200
    assert site.post("/v1/queues/later/resume").json()["counts"]["PENDING"] == 0


def test_scaling_returns_how_many_workers_a_queue_needs(site: ApiRig) -> None:
    for _ in range(9):
        site.create()
    site.take()
    start_worker(site, "default")
    site.roll_up()

    result = site.get("/v1/queues/default/scaling", params={"jobs_per_worker": 4}).json()

    assert (result["backlog"], result["running"], result["workers"], result["suggested_workers"]) == (8, 1, 1, 3)
    site.post("/v1/queues/default/pause")
    assert site.get("/v1/queues/default/scaling", params={"jobs_per_worker": 4}).json()["suggested_workers"] == 1


def test_jobs_for_later_and_an_empty_queue_need_no_worker(site: ApiRig) -> None:
    site.create(delay=3600)
    site.roll_up()

    assert site.get("/v1/queues/default/scaling").json()["suggested_workers"] == 0
    assert site.get("/v1/queues/nothing/scaling").json()["suggested_workers"] == 0


def test_a_queue_whose_jobs_are_not_counted_needs_a_worker(site: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Janitors count jobs, and are part of workers: an autoscaler would never start the first one."""
    listed = MemoryInspector.queues

    def uncounted(inspector: MemoryInspector) -> list[QueueStats]:
        return [replace(each, counts=dict.fromkeys(Status, 0)) for each in listed(inspector)]

    monkeypatch.setattr(MemoryInspector, "queues", uncounted)
    site.create()

    result = site.get("/v1/queues/default/scaling").json()

    assert (result["backlog"], result["workers"], result["suggested_workers"]) == (1, 0, 1)


def test_workers_are_listed_with_their_state(site: ApiRig) -> None:
    start_worker(site, "default")

    [worker] = site.get("/v1/workers").json()["workers"]

    assert (worker["id"], worker["queues"], worker["is_alive"]) == ("w", ["default"], True)


def test_stats_contain_current_counts_and_those_of_the_last_hour(site: ApiRig) -> None:
    site.create()
    site.settle(site.take(), Outcome.ack())
    site.dead()
    site.create()
    site.post("/v1/queues/mail/pause")
    start_worker(site, "default")
    site.roll_up()

    result = site.get("/v1/stats").json()

    assert (result["counts"]["SUCCEEDED"], result["counts"]["DEAD"], result["counts"]["PENDING"]) == (1, 1, 1)
    assert result["finished_last_hour"] == {"SUCCEEDED": 1, "DEAD": 1, "CANCELED": 0}
    assert (result["paused_queues"], result["workers_alive"]) == (["mail"], 1)


def put(site: ApiRig, name: str = "nightly", **fields: Any) -> Any:
    return site.request("PUT", f"/v1/schedules/{name}", json=NIGHTLY | fields)


def test_a_schedule_is_defined_changed_and_removed(site: ApiRig) -> None:
    made = put(site)
    changed = put(site, overlap="skip", timeout=30)

    assert (made.status_code, changed.status_code) == (201, 200)
    assert made.json()["next_at"] is not None
    assert changed.json()["options"]["overlap"] == "skip"
    assert site.get("/v1/schedules/nightly").json() == changed.json()
    assert [each["name"] for each in site.get("/v1/schedules").json()["schedules"]] == ["nightly"]
    assert site.request("DELETE", "/v1/schedules/nightly").status_code == 204
    assert site.request("DELETE", "/v1/schedules/nightly").status_code == 404


def test_a_schedule_shows_its_origin_and_why_it_does_not_fire(site: ApiRig) -> None:
    put(site)
    Scheduler(site.driver).declare([ScheduleSpec(name="hourly", cron="0 * * * *", type="report")])

    def shown(name: str) -> tuple[str, str, bool]:
        one, listed = site.get(f"/v1/schedules/{name}").json(), site.get("/v1/schedules").json()["schedules"]
        assert [each | {"payload": None} for each in listed if each["name"] == name] == [one | {"payload": None}]
        return one["origin"], one["state"], one["declared_at"] is not None

    undeclared, stored = shown("hourly"), shown("nightly")
    start_worker(site, "default", schedules=("hourly",))
    declared = shown("hourly")
    site.post("/v1/schedules/nightly/pause")

    assert (undeclared, declared) == (("code", "undeclared", True), ("code", "active", True))
    assert (stored, shown("nightly")) == (("stored", "active", False), ("stored", "paused", False))
    [worker] = site.get("/v1/workers").json()["workers"]
    assert worker["schedules"] == ["hourly"]


@pytest.mark.parametrize("name", ["nightly%0A", "night%0Aly"])
def test_a_newline_in_a_schedule_name_is_rejected(site: ApiRig, name: str) -> None:
    put(site)

    assert put(site, name).status_code == 422
    assert site.get(f"/v1/schedules/{name}").status_code == 422
    assert site.get("/v1/schedules%0A").status_code == 404


def test_a_schedules_payload_is_not_in_the_list(site: ApiRig) -> None:
    put(site)

    assert "payload" not in site.get("/v1/schedules").json()["schedules"][0]
    assert site.get("/v1/schedules/nightly").json()["payload"] == {"n": 1}


def test_running_a_schedule_creates_a_job_now(site: ApiRig) -> None:
    put(site)

    made = site.post("/v1/schedules/nightly/run", headers={"Idempotency-Key": "once"})
    again = site.post("/v1/schedules/nightly/run", headers={"Idempotency-Key": "once"})

    assert (made.status_code, again.status_code) == (201, 200)
    assert made.json()["id"] == again.json()["id"]
    assert (made.json()["type"], made.json()["payload"]) == ("reports.nightly", {"n": 1})
    assert made.headers["location"] == f"/v1/jobs/{made.json()['id']}"


def test_a_paused_schedule_stays_paused_until_it_is_resumed(site: ApiRig) -> None:
    put(site)

    assert site.post("/v1/schedules/nightly/pause").json()["paused_at"] is not None
    assert site.post("/v1/schedules/nightly/resume").json()["paused_at"] is None


@pytest.mark.parametrize("verb", ["run", "pause", "resume"])
def test_a_schedule_that_is_not_there_is_not_found(site: ApiRig, verb: str) -> None:
    missing = site.post(f"/v1/schedules/nothing/{verb}")

    assert missing.status_code == 404
    assert problem(missing)["code"] == "schedule-not-found"


def test_a_schedules_name_may_hold_slashes_as_types_do(site: ApiRig) -> None:
    assert put(site, "reports/nightly").status_code == 201
    assert site.get("/v1/schedules/reports/nightly").json()["name"] == "reports/nightly"
    assert site.post("/v1/schedules/reports/nightly/run").status_code == 201


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"cron": "0 25 * * *"}, "/cron"),
        ({"cron": "0 0 30 2 *"}, "/cron"),
        ({"timezone": "Europe/Pari"}, "/timezone"),
        ({"missed": "never"}, "/missed"),
        ({"type": "no spaces"}, "/type"),
        ({"window": 1}, "/window"),
    ],
    ids=repr,
)
def test_an_invalid_schedule_field_is_reported_with_its_pointer(
    site: ApiRig, fields: dict[str, Any], pointer: str
) -> None:
    refused = put(site, **fields)

    assert refused.status_code == 422
    assert pointer in [each["pointer"] for each in problem(refused)["errors"]]


def test_a_worker_without_recent_heartbeat_is_not_counted() -> None:

    clock = ManualClock()
    with opened(MemoryDriver(clock=clock)) as site:
        start_worker(site, "default")
        clock.advance(timedelta(minutes=1))

        assert site.get("/v1/stats").json()["workers_alive"] == 0


def test_a_schedule_has_its_next_fire_times_in_both_zones(site: ApiRig) -> None:
    site.request("PUT", "/v1/schedules/nightly", json=NIGHTLY)

    answer = site.get("/v1/schedules/nightly/next", params={"count": 3}).json()

    assert len(answer["fires"]) == len(answer["local"]) == 3
    assert all("T02:00:00+0" in each for each in answer["local"])
    assert site.get("/v1/schedules/nothing/next").status_code == 404


def test_the_runs_of_a_schedule_show_what_became_of_their_jobs(site: ApiRig) -> None:
    site.request("PUT", "/v1/schedules/nightly", json=NIGHTLY)
    done = site.post("/v1/schedules/nightly/run").json()["id"]
    site.settle(site.take(), Outcome.ack())
    waiting = site.post("/v1/schedules/nightly/run").json()["id"]

    runs = site.get("/v1/schedules/nightly/runs").json()["runs"]

    assert [(each["job_id"], each["status"], each["fire_time"]) for each in runs] == [
        (waiting, "PENDING", None),
        (done, "SUCCEEDED", None),
    ]
    assert site.get("/v1/schedules/nothing/runs").status_code == 404


@pytest.mark.parametrize("name", ["reports/next", "reports/runs"])
def test_a_schedule_with_the_name_of_a_path_is_returned(site: ApiRig, name: str) -> None:
    site.request("PUT", f"/v1/schedules/{name}", json=NIGHTLY)

    assert site.get(f"/v1/schedules/{name}").json()["name"] == name
