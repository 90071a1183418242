"""With --json, commands print what the HTTP API returns."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.model import WorkerRecord
from taskharbor.drivers.connect import connect
from taskharbor.schedules import Scheduler, ScheduleSpec
from tests.support.api_rig import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.api_rig import ApiRig
    from tests.support.console import Console

VOLATILE: Final = {"now", "next", "wait_seconds", "run_seconds", "oldest_age_seconds", "links"}


@pytest.fixture
def site(console: Console) -> Iterator[ApiRig]:
    with opened(connect(console.url)) as made:
        yield made


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("jobs list", "/v1/jobs"),
        ("jobs list --limit 1", "/v1/jobs?limit=1"),
        ("dead list", "/v1/dead-letters"),
        ("dead groups", "/v1/dead-letters/groups"),
        ("jobs show {dead} --payload", "/v1/jobs/{dead}"),
        ("jobs wait {done}", "/v1/jobs/{done}"),
        ("jobs why {waiting}", "/v1/jobs/{waiting}/why"),
        ("queues list", "/v1/queues"),
        ("workers list", "/v1/workers"),
        ("schedules list", "/v1/schedules"),
        ("schedules next nightly --count 3", "/v1/schedules/nightly/next?count=3"),
        ("schedules runs nightly", "/v1/schedules/nightly/runs"),
        ("audit-log", "/v1/audit"),
        ("keys list", "/v1/keys"),
        ("stats", "/v1/stats"),
    ],
)
def test_a_command_prints_what_the_api_answers(words: str, path: str, console: Console, site: ApiRig) -> None:
    names = filled(console)

    said = console(*words.format(**names).split(), "--json").data
    answered = site.get(path.format(**names)).json()

    shared = {name: said[name] for name in said if name in answered}
    assert shared.keys() >= answered.keys() - {"payload", "result", "next"}
    assert without_volatile(shared) == without_volatile({name: answered[name] for name in shared})


def filled(console: Console) -> dict[str, str]:
    """Store one object of each kind, and return the ids of the jobs."""
    inspector, maintenance = console.driver.inspector, console.driver.maintenance
    record = WorkerRecord(
        id="w-1", host="box", pid=7, queues=("default",), types=("greet",), concurrency=4, started_at=inspector.now()
    )
    maintenance.record_worker(record)
    Scheduler(console.driver).put([ScheduleSpec(name="nightly", cron="0 2 * * *", type="report")])
    dead, done = console.dead(metadata={"tenant": "acme"}), console.done()
    waiting = console.enqueue(delay=timedelta(hours=1), queue="mail")
    console.driver.control.pause(["mail"], by="ops@host")
    return {"dead": str(dead), "done": str(done), "waiting": str(waiting)}


def without_volatile(value: Any) -> Any:
    """Remove the fields that differ between two reads, and the cursor, which only the API has."""
    match value:
        case dict():
            return {name: without_volatile(item) for name, item in value.items() if name not in VOLATILE}
        case list():
            return [without_volatile(item) for item in value]
        case _:
            return value
