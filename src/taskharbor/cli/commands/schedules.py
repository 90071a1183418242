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

TITLES: Final = ("name", "cron", "timezone", "type", "queue", "next", "fired", "paused", "origin", "state")
MAX_FIRE_TIMES: Final = 1_000


@click.group(cls=LazyGroup)
def schedules() -> None:
    """List schedules; run, pause, resume and delete them.

    Code declares schedules beside its tasks; a worker stores them when it starts. They fire only while a
    live worker declares them. Other programs and the HTTP API store schedules that fire without a declaration.
    """


@schedules.command(name="list")
@url_option
@json_option
def list_(*, url: str, as_json: bool) -> None:
    """List schedules with their next fire times.

    Origin is 'code' for a schedule that workers declare, else 'stored'. A schedule fires in the state 'active';
    it is 'undeclared' if no live worker declares it any more.

    With --json: {"schedules": [...]}, each as the API returns it.
    """
    from taskharbor.cli.render import print_table
    from taskharbor.diagnosis import declared_schedules
    from taskharbor.views import schedule_view

    with open_driver(url) as driver:
        found, declared = driver.inspector.schedules().values(), declared_schedules(driver.inspector)
        views = [schedule_view(each, declared=declared) for each in found]
        if as_json:
            echo_data({"schedules": views}, as_json=True, plain="")
            return
        rows = [
            [each.name, each.cron, each.timezone, each.type, each.queue, each.next_at, each.fired_at, each.paused_at,
             view["origin"], view["state"]]
            for each, view in zip(found, views, strict=True)
        ]  # fmt: skip
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

    With --json: {"name", "cron", "timezone", "fires": [...], "local": [...]}
    """
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from taskharbor.diagnosis import declared_schedules
    from taskharbor.schedule_runs import read_fire_times
    from taskharbor.views import schedule_state

    with open_driver(url) as driver:
        [schedule] = require_schedules(driver, [name])
        state = schedule_state(schedule, declared=declared_schedules(driver.inspector))
        data = read_fire_times(schedule, now=driver.inspector.now(), count=count)
    zone = ZoneInfo(schedule.timezone)
    lines = [f"{fire}\t{datetime.fromisoformat(fire).astimezone(zone):%a %Y-%m-%d %H:%M %Z}" for fire in data["fires"]]
    echo_data(data, as_json=as_json, plain="\n".join(lines))
    if state == "paused":
        echo_status(f"schedule {name} is paused; it does not fire until it is resumed")
    elif state == "undeclared":
        echo_status(f"schedule {name} is not declared by any live worker; it does not fire until one declares it")


@schedules.command()
@click.argument("name")
@click.option("-n", "--limit", type=click.IntRange(1, 100), default=30, show_default=True, help="How many to show.")
@url_option
@json_option
def runs(*, url: str, name: str, limit: int, as_json: bool) -> None:
    """Show the last runs of a schedule, newest first, and what became of their jobs.

    A run has no fire time if it was asked for. A fire time without a job was missed, or skipped because the previous
    job had not ended (overlap).

    With --json: {"runs": [...]}, each as the API returns it.
    """
    from taskharbor.cli.render import print_table
    from taskharbor.schedule_runs import read_runs

    with open_driver(url) as driver:
        require_schedules(driver, [name])
        found = read_runs(driver.inspector, [name], limit=limit)[name]
        if as_json:
            echo_data({"runs": found}, as_json=True, plain="")
            return
        rows = [
            [each["fire_time"], each["at"], each["job_id"], each["skipped"] or each["status"], each["ended_at"],
             each["error"]]
            for each in found
        ]  # fmt: skip
        titles = ("fire time", "fired", "job", "result", "ended", "error")
        print_table(titles, rows, now=driver.inspector.now(), empty=f"schedule {name} has not fired yet")


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
        scheduler = Scheduler(driver, codec=harbor.codec, max_attempts=harbor.max_attempts, tracing=harbor.spans)
        enqueued = scheduler.run_now(name)
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


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@url_option
@json_option
def delete(*, url: str, names: tuple[str, ...], as_json: bool) -> None:
    """Delete schedules. The jobs that they created are kept.

    A worker whose code still declares a schedule stores it again when it starts: remove it from the code, or
    pause it instead.

    With --json: {"deleted": [NAME, ...]}
    """
    from taskharbor.cli.store import record_audit
    from taskharbor.diagnosis import declared_schedules

    with open_driver(url) as driver:
        unique = list(dict.fromkeys(names))
        require_schedules(driver, unique)
        declared = declared_schedules(driver.inspector)
        for name, existed in zip(unique, driver.control.delete_schedules(unique), strict=True):
            if existed:
                record_audit(driver, "schedules.delete", name)
            if name in declared:
                echo_status(
                    f"schedule {name} is still declared by a live worker; the next worker that declares it and starts "
                    "stores it again: remove it from the code, or pause it"
                )
    echo_data({"deleted": unique}, as_json=as_json, plain="\n".join(unique))


def _report(driver: Driver, verb: str, names: Sequence[str], changed: Sequence[bool], *, as_json: bool) -> None:
    from taskharbor.cli.store import record_audit
    from taskharbor.diagnosis import declared_schedules
    from taskharbor.views import schedule_view

    for name, is_new in zip(names, changed, strict=True):
        if is_new:
            record_audit(driver, f"schedules.{verb}", name)
        else:
            echo_status(f"schedule {name} was already {verb}d")
    found, declared = driver.inspector.schedules(), declared_schedules(driver.inspector)
    views = [schedule_view(found[name], declared=declared) for name in names if name in found]
    echo_data({"schedules": views}, as_json=as_json, plain="\n".join(names))
