"""How far long work is, with its rate and what is left, on stderr."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

from taskharbor.cli.times import span

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

_ON_A_TERMINAL: Final = 0.2  # seconds between two updates of a line
_ELSEWHERE: Final = 5.0  # seconds between two lines


class ProgressLine:
    """Tells how far *what* is. On a terminal one line is written over; elsewhere a line comes now and then."""

    def __init__(self, what: str, total: int | None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._what, self._total = what, total
        self._monotonic = monotonic
        self._is_live = sys.stderr.isatty()
        self._every = _ON_A_TERMINAL if self._is_live else _ELSEWHERE
        self._start = self._told_at = monotonic()
        self._was_told = False
        self.done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._was_told and self._is_live:
            click.echo("\r\x1b[K", nl=False, err=True)

    def advance(self, count: int) -> None:
        """Note that *count* more are done."""
        self.done += count
        now = self._monotonic()
        if now - self._told_at >= self._every:
            self._told_at, self._was_told = now, True
            click.echo(f"\r\x1b[K{self}" if self._is_live else str(self), nl=not self._is_live, err=True)

    def __str__(self) -> str:
        rate = self.done / max(self._monotonic() - self._start, 0.001)
        if self._total is None:
            return f"{self._what}: {self.done:,}, {rate:,.0f}/s"
        part = f"{self._what}: {self.done:,} of {self._total:,} ({self.done * 100 // max(self._total, 1)}%)"
        left = span(timedelta(seconds=(self._total - self.done) / rate)) if rate else "?"
        return f"{part}, {rate:,.0f}/s, {left} left"
