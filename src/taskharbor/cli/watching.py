"""A look at everything, again and again: over the same screen on a terminal, one after the other elsewhere."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from itertools import count as counting
from typing import TYPE_CHECKING, Final

import click

from taskharbor.cli.overview import QUEUES, WORKERS, headline, queue_rows, show_stats, worker_rows
from taskharbor.cli.tables import aligned, has_rich, rich_table
from taskharbor.cli.waiting import wait
from taskharbor.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from taskharbor.drivers.base import Driver

_CLEAR: Final = "\x1b[H\x1b[2J"
_LEAVE: Final = {"q", "Q", "\x1b", ""}  # escape, too, and the end of the input


def watch(driver: Driver, *, every: timedelta, count: int | None, as_json: bool) -> None:
    """Look every so often, *count* times or until somebody has seen enough."""
    is_live = sys.stdout.isatty() and not as_json
    with _screen() if is_live else _lines(as_json=as_json) as draw, _keys() as was_told_to_end:
        for look in counting(1):
            draw(driver)
            if look == count or was_told_to_end(every):
                return


@contextmanager
def _lines(*, as_json: bool) -> Iterator[Callable[[Driver], None]]:
    yield lambda driver: show_stats(driver, as_json=as_json)


@contextmanager
def _screen() -> Iterator[Callable[[Driver], None]]:
    """Give what draws over the whole screen."""
    if not has_rich():
        yield lambda driver: click.echo(_CLEAR + _plain(driver))
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(no_color=Settings.from_env().no_color or None), screen=True, auto_refresh=False) as live:

        def draw(driver: Driver) -> None:
            now = driver.inspector.now()
            queues, workers = queue_rows(driver.inspector.queues()), worker_rows(driver.inspector.workers(), now)
            tables = [
                rich_table(titles, rows, now=now) for titles, rows in ((QUEUES, queues), (WORKERS, workers)) if rows
            ]
            live.update(Group(Text(headline(driver)), *tables, Text("q ends this", style="dim")), refresh=True)

        yield draw


def _plain(driver: Driver) -> str:
    now = driver.inspector.now()
    queues, workers = queue_rows(driver.inspector.queues()), worker_rows(driver.inspector.workers(), now)
    tables = [aligned(titles, rows, now=now) for titles, rows in ((QUEUES, queues), (WORKERS, workers)) if rows]
    return "\n\n".join([headline(driver), *tables, "q ends this"])


@contextmanager
def _keys() -> Iterator[Callable[[timedelta], bool]]:
    """Give what waits for so long, and tells whether a key was pressed that means the end."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield _just_wait
        return
    import select
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def pressed(length: timedelta) -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], length.total_seconds())
        return bool(ready) and sys.stdin.read(1) in _LEAVE

    try:
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _just_wait(length: timedelta) -> bool:
    wait(length)
    return False
