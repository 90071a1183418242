"""What a person sees: a live picture on a terminal if rich is there, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from rich.live import Live

EVENTS: Final = 10  # lines above the counts


class Display:
    """Shows counts as they change, and what happens as it happens."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._stack = ExitStack()
        self._live: Live | None = None
        self._events: list[str] = []
        self._counts: dict[str, int] = {}

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            self._live = self._open_live()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def say(self, text: str) -> None:
        """Tell what happened."""
        line = f"[{time.monotonic() - self._start:>5.1f} s] {text}"
        if self._live is None:
            click.echo(line)
        else:
            self._events = [*self._events, line][-EVENTS:]
            self._draw()

    def count(self, counts: Mapping[str, int]) -> None:
        """Show where the jobs are."""
        if self._live is None:
            self.say(" · ".join(f"{name} {count}" for name, count in counts.items()))
        else:
            self._counts = dict(counts)
            self._draw()

    def _open_live(self) -> Live | None:
        try:
            from rich.live import Live
        except ImportError:
            return None
        return self._stack.enter_context(Live(refresh_per_second=10))

    def _draw(self) -> None:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(*self._counts)
        table.add_row(*map(str, self._counts.values()))
        if self._live is not None:
            self._live.update(Group(*map(Text, self._events), table))
