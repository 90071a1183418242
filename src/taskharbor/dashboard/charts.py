"""Charts as SVG: pure functions from numbers to markup.

A chart has no text inside: labels are HTML beside it, which stays readable at any width. Sizes are attributes and
colors are classes, because the content security policy forbids inline styles. The links of bars are not in the tab
order; the table below each chart has the same links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil, floor, log10
from typing import Final

from markupsafe import Markup, escape

from taskharbor.dashboard.texts import UNKNOWN, span

WIDTH: Final = 1_000
HEIGHT: Final = 100
TICKS: Final = 4
"""Every range has a multiple of four steps, so that the labels stand at the beginning of their steps."""
DAYS_FROM_STEP: Final = timedelta(hours=1)
SECONDS: Final = "s"
_NICE_SECONDS: Final = tuple(minutes * 60.0 for minutes in (2, 4, 10, 20, 40, 60, 120, 240, 480, 1_440, 2_880))
MIN_SECONDS: Final = 0.01
_NICE: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Series:
    """One row of values of a chart: its name, the CSS class of its color, and a value for each step (None: unknown)."""

    name: str
    css: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in time to mark, such as the first sight of a new version."""

    at: datetime
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The steps of a chart: their times, what each links to, and marks. *is_partial*: the last step is not over."""

    steps: Sequence[datetime]
    step: timedelta
    hrefs: Sequence[str] = ()
    marks: Sequence[Mark] = ()
    is_partial: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawn chart. ``scale`` and ``ticks`` are its labels, ``rows`` are the values for the table."""

    svg: Markup
    scale: tuple[str, str, str]
    ticks: tuple[tuple[str, datetime], ...]
    marks: tuple[tuple[str, Mark], ...]
    series: tuple[Series, ...]
    rows: tuple[tuple[datetime, str, tuple[str, ...]], ...]
    is_empty: bool
    has_clock: bool


@dataclass(frozen=True, slots=True)
class _Canvas:
    """Coordinates of a chart whose highest value is *top*."""

    frame: Frame
    top: float
    parts: list[str] = field(default_factory=list)

    @property
    def width(self) -> float:
        return WIDTH / max(len(self.frame.steps), 1)

    def x(self, index: float) -> str:
        return f"{index * self.width:.1f}"

    def y(self, value: float) -> float:
        return HEIGHT - value / self.top * HEIGHT if self.top else HEIGHT

    def grid(self) -> None:
        for at in (0, HEIGHT / 2, HEIGHT):
            self.parts.append(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{at:g}" y2="{at:g}"/>')

    def link(self, index: int, content: str, title: str) -> None:
        href = self.frame.hrefs[index] if self.frame.hrefs else ""
        body = f"<title>{escape(title)}</title>{content}"
        opened = f'<a href="{escape(href)}" tabindex="-1">{body}</a>' if href else f"<g>{body}</g>"
        self.parts.append(opened)

    def svg(self, css: str) -> Markup:
        for mark in self.frame.marks:
            at = self.x((mark.at - self.frame.steps[0]) / self.frame.step)
            self.parts.append(f'<line class="mark" x1="{at}" x2="{at}" y1="0" y2="{HEIGHT}"/>')
        body = "".join(self.parts)
        return Markup(  # noqa: S704  made of numbers and escaped text
            f'<svg class="chart {css}" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true"'
            f' focusable="false" width="100%" height="140">{body}</svg>'
        )


def stacked_bars(frame: Frame, series: Sequence[Series], *, unit: str = "") -> Chart:
    """Draw bars, one for each step, of all *series* on top of each other."""
    totals = [sum(each.values[index] or 0 for each in series) for index in range(len(frame.steps))]
    canvas = _Canvas(frame, _top(max([*totals, _least(unit)]), unit))
    canvas.grid()
    gap = canvas.width * 0.1
    for index, total in enumerate(totals):
        base, rects = 0.0, []
        for each in series:
            value = each.values[index] or 0
            if value:
                top = canvas.y(base + value)
                height = canvas.y(base) - top
                rects.append(_rect(canvas, index, gap, top, height, each.css))
                base += value
        if frame.is_partial and index == len(totals) - 1 and total:
            rects.append(_rect(canvas, index, gap, canvas.y(base), HEIGHT - canvas.y(base), "hatched"))
        rects.append(_rect(canvas, index, 0, 0, HEIGHT, "hit"))
        canvas.link(index, "".join(rects), _title(frame, series, index, unit))
    return _chart(canvas, series, unit, "bars")


def lines(frame: Frame, series: Sequence[Series], *, unit: str = "") -> Chart:
    """Draw a line for each of *series*. It has a gap where a value is unknown."""
    known = [value for each in series for value in each.values if value is not None]
    canvas = _Canvas(frame, _top(max([*known, _least(unit)]), unit))
    canvas.grid()
    for each in series:
        for start, values in _runs(each.values):
            points = " ".join(f"{canvas.x(start + n + 0.5)},{canvas.y(value):.1f}" for n, value in enumerate(values))
            canvas.parts.append(f'<polyline class="line {each.css}" points="{points}"/>')
            if len(values) == 1:
                canvas.parts.append(_rect(canvas, start, canvas.width * 0.4, canvas.y(values[0]), 2, each.css))
    for index in range(len(frame.steps)):
        canvas.link(index, _rect(canvas, index, 0, 0, HEIGHT, "hit"), _title(frame, series, index, unit))
    return _chart(canvas, series, unit, "lines")


def sparkline(values: Sequence[float]) -> Markup:
    """Draw a small line without labels.

    >>> "polyline" in sparkline([1, 2, 3])
    True
    """
    top = max(values, default=0) or 1
    step = 100 / max(len(values) - 1, 1)
    points = " ".join(f"{index * step:.1f},{19 - value / top * 18:.1f}" for index, value in enumerate(values))
    return Markup(  # noqa: S704  made of numbers
        '<svg class="spark" viewBox="0 0 100 20" preserveAspectRatio="none" width="110" height="20" aria-hidden="true"'
        f' focusable="false"><polyline points="{points}"/></svg>'
    )


def nice_top(value: float) -> float:
    """Return the next round number above *value*, for the top of a scale.

    >>> [nice_top(each) for each in (0, 3, 12, 379, 0.03)]
    [1.0, 5.0, 20.0, 500.0, 0.05]
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(round(nice * power, 6) for nice in _NICE if nice * power >= value)


def steps_of(since: datetime, until: datetime, step: timedelta) -> list[datetime]:
    """Return the beginning of each step from *since* to *until*."""
    return [since + index * step for index in range(ceil((until - since) / step))]


def fill(
    steps: Sequence[datetime], points: Mapping[datetime, float], missing: float | None = 0.0
) -> list[float | None]:
    """Return the value of each step; *missing* where there is none."""
    return [points.get(at, missing) for at in steps]


def figure(value: float | None) -> str:
    """Return a number for labels: few digits, with separators.

    >>> figure(1204), figure(0.25)
    ('1,204', '0.25')
    """
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.3g}"  # noqa: PLR2004  two digits


def heads_of(chart: Chart) -> list[tuple[str, str]]:
    """Return the heads of the table of a chart."""
    return [("Time", ""), *((each.name, "n") for each in chart.series)]


def sums_of(chart: Chart) -> str:
    """Return a sentence with the sum of each series."""
    sums = [(sum(value or 0 for value in each.values), each.name.lower()) for each in chart.series]
    return (
        ", ".join(f"{figure(value)} {name}" for value, name in sums if value) + "."
        if any(s for s, _ in sums)
        else "none."
    )


def _rect(canvas: _Canvas, index: int, gap: float, top: float, height: float, css: str) -> str:  # noqa: PLR0917  a shape
    left, width = index * canvas.width + gap, canvas.width - 2 * gap
    return f'<rect class="{css}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _least(unit: str) -> float:
    """Return the lowest top of a scale: below it, differences mean nothing."""
    return MIN_SECONDS if unit == SECONDS else 1.0


def _top(value: float, unit: str) -> float:
    if unit == SECONDS and value > 60:  # noqa: PLR2004  seconds of a minute
        return next((each for each in _NICE_SECONDS if each >= value), nice_top(value))
    return nice_top(value)


def _label(value: float, unit: str) -> str:
    return span(value) if unit == SECONDS else figure(value)


def _runs(values: Sequence[float | None]) -> list[tuple[int, list[float]]]:
    """Return the stretches of known values with their first index."""
    runs: list[tuple[int, list[float]]] = []
    for index, value in enumerate(values):
        if value is None:
            continue
        if runs and runs[-1][0] + len(runs[-1][1]) == index:
            runs[-1][1].append(value)
        else:
            runs.append((index, [value]))
    return runs


def _value(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else _label(value, unit)


def _title(frame: Frame, series: Sequence[Series], index: int, unit: str) -> str:
    values = ", ".join(f"{each.name} {_value(each.values[index], unit)}" for each in series if each.values[index])
    return f"{frame.steps[index]:%H:%M} UTC: {values or 'nothing'}"


def _chart(canvas: _Canvas, series: Sequence[Series], unit: str, css: str) -> Chart:
    frame = canvas.frame
    every = max(1, ceil(len(frame.steps) / TICKS))
    written = "%b %d" if frame.step >= DAYS_FROM_STEP else "%H:%M"
    rows = [
        (at, frame.hrefs[index] if frame.hrefs else "", tuple(_value(each.values[index], unit) for each in series))
        for index, at in enumerate(frame.steps)
        if any(each.values[index] for each in series)
    ]
    marks = [(f"{(mark.at - frame.steps[0]) / frame.step * canvas.width / WIDTH:.0%}", mark) for mark in frame.marks]
    return Chart(
        svg=canvas.svg(css),
        scale=(_label(canvas.top, unit), _label(canvas.top / 2, unit), "0"),
        ticks=tuple((at.strftime(written), at) for at in frame.steps[::every]),
        has_clock=frame.step < DAYS_FROM_STEP,
        marks=tuple(marks),
        series=tuple(series),
        rows=tuple(reversed(rows)),
        is_empty=not rows,
    )
