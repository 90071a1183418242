from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import app_option, json_option, url_option
from taskharbor.cli.render import echo_data, echo_status
from taskharbor.cli.store import open_driver, require_schedules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.drivers.base import Driver

TITLES: Final = ("name", "cron", "timezone", "type", "queue", "next", "fired", "paused")
MAX_FIRE_TIMES: Final = 1_000


@click.group(cls=LazyGroup)
def schedules() -> None:
    """List schedules; run, pause and resume them.

    Schedules are defined in Python, beside the tasks, and kept in the store.
    """


@schedules.command(name="list")
@url_option
@json_option
def list_(*, url: str, as_json: bool) -> None:
    """List schedules with their next fire times.

    With --json: {"schedules": [...]}, each as the API returns it.
    """
    from taskharbor.cli.render import print_table
    from taskharbor.views import schedule_view

    with open_driver(url) as driver:
        found = list(driver.inspector.schedules().values())
        if as_json:
            echo_data({"schedules": list(map(schedule_view, found))}, as_json=True, plain="")
            return
        rows = [
            [each.name, each.cron, each.timezone, each.type, each.queue, each.next_at, each.fired_at, each.paused_at]
            for each in found
        ]
        print_table(TITLES, rows, now=driver.inspector.now(), empty="no schedules")


@schedules.command(name="next")
@click.argument("name")
@click.option(
    "-n", "--count", type=click.IntRange(1, MAX_FIRE_TIMES), default=5, show_default=True, help="How many to show."
)
@url_option
@json_option
def next_(*, url: str, name: str, count: int, as_json: bool) -> None:
    """Show the next fire times of a schedule, in UTC and in its time zone.

    With --json: {"name", "cron", "timezone", "fires": [...]}
    """
    from zoneinfo import ZoneInfo

    from taskharbor.schedules import next_fires
    from taskharbor.views import iso_time

    with open_driver(url) as driver:
        [schedule] = require_schedules(driver, [name])
        fires = next_fires(schedule.cron, schedule.timezone, after=driver.inspector.now(), count=count)
    data = {"name": name, "cron": schedule.cron, "timezone": schedule.timezone, "fires": list(map(iso_time, fires))}
    zone = ZoneInfo(schedule.timezone)
    lines = [f"{iso_time(fire)}\t{fire.astimezone(zone):%a %Y-%m-%d %H:%M %Z}" for fire in fires]
    echo_data(data, as_json=as_json, plain="\n".join(lines))
    if schedule.paused_at is not None:
        echo_status(f"schedule {name} is paused; it does not fire until it is resumed")


@schedules.command()
@click.argument("name")
@app_option
@url_option
@json_option
def run(*, app: str | None, url: str, name: str, as_json: bool) -> None:
    """Create a job of a schedule now, and print its id. Its next fire time does not change.

    With --json the job is printed as the API returns it.
    """
    from taskharbor.cli.app_loader import harbor_for
    from taskharbor.cli.jobs_view import show_job
    from taskharbor.cli.store import get_job, record_audit
    from taskharbor.schedules import Scheduler

    harbor = harbor_for(app)
    with open_driver(url) as driver:
        enqueued = Scheduler(driver, codec=harbor.codec, policy=harbor.policy).run_now(name)
        record_audit(driver, "schedules.run", name, job=str(enqueued.id))
        show_job(driver, get_job(driver, enqueued.id), as_json=as_json, plain=str(enqueued.id))


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@url_option
@json_option
def pause(*, url: str, names: tuple[str, ...], as_json: bool) -> None:
    """Pause schedules: they create no jobs until they are resumed."""
    with open_driver(url) as driver:
        unique = list(dict.fromkeys(names))
        require_schedules(driver, unique)
        _report(driver, "pause", unique, driver.control.pause_schedules(unique), as_json=as_json)


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@url_option
@json_option
def resume(*, url: str, names: tuple[str, ...], as_json: bool) -> None:
    """Resume paused schedules."""
    with open_driver(url) as driver:
        unique = list(dict.fromkeys(names))
        require_schedules(driver, unique)
        _report(driver, "resume", unique, driver.control.resume_schedules(unique), as_json=as_json)


def _report(driver: Driver, verb: str, names: Sequence[str], changed: Sequence[bool], *, as_json: bool) -> None:
    from taskharbor.cli.store import record_audit
    from taskharbor.views import schedule_view

    for name, is_new in zip(names, changed, strict=True):
        if is_new:
            record_audit(driver, f"schedules.{verb}", name)
        else:
            echo_status(f"schedule {name} was already {verb}d")
    found = driver.inspector.schedules()
    views = [schedule_view(found[name]) for name in names if name in found]
    echo_data({"schedules": views}, as_json=as_json, plain="\n".join(names))
