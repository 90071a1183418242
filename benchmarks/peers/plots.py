"""Bar charts of a run as SVG: a panel for each column of a group, a bar for each system, a line from min to max."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from benchmarks.peers.catalog import OURS
from benchmarks.peers.tables import GROUPS, column_values, number
from tools.drawing import THEMES, Theme
from tools.render_picture import FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.peers.claims import Measured
    from benchmarks.peers.tables import Group, Summary

PLOTTED: Final = ("drain", "enqueue", "latency", "stores")
WIDTH: Final = 800
LABELS_WIDTH: Final = 208
VALUES_WIDTH: Final = 170  # the text right of the longest bar
ROW_HEIGHT: Final = 20
BAR_HEIGHT: Final = 12
HEAD_HEIGHT: Final = 56
PANEL_HEIGHT: Final = 36  # its title
FONTS: Final = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif"


def plots(report: dict[str, Any]) -> dict[Path, str]:
    """Return the drawings of a run, by file: one for light and one for dark pages."""
    return {
        FOLDER / f"peers-{name}-{theme_name}.svg": plot(report["measured"], GROUPS[name], theme)
        for name in PLOTTED
        if any(column_values(report["measured"], column) for column in GROUPS[name].columns)
        for theme_name, theme in THEMES.items()
    }


def plot(measured: Measured, group: Group, theme: Theme) -> str:
    """Return the drawing of a group; each panel has a scale of its own that starts at zero."""
    parts: list[str] = []
    top = HEAD_HEIGHT
    for column in group.columns:
        if found := column_values(measured, column):
            parts += [_text(theme, 16, top + 24, column.heading, size=13, is_strong=True)]
            parts += _panel(theme, top + PANEL_HEIGHT, found, lower_is_better=group.lower_is_better)
            top += PANEL_HEIGHT + ROW_HEIGHT * len(found)
    height = top + 16
    head = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-labelledby="title"'
    better = "lower is better" if group.lower_is_better else "higher is better"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {head} font-family="{FONTS}">',
            f'<title id="title">{escape(group.title)}</title>',
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{theme.background}"/>',
            _text(theme, 16, 28, group.title, size=15, is_strong=True),
            _text(theme, 16, 46, f"median of the rounds, with the lowest and the highest; {better}"),
            *parts,
            "</svg>\n",
        ]
    )


def _panel(theme: Theme, top: int, found: dict[str, Summary], *, lower_is_better: bool) -> list[str]:
    ordered = sorted(found.items(), key=lambda item: item[1].median, reverse=not lower_is_better)
    scale = (WIDTH - LABELS_WIDTH - VALUES_WIDTH) / (max(each.high for each in found.values()) or 1.0)
    return [part for n, row in enumerate(ordered) for part in _bar(theme, top + n * ROW_HEIGHT, scale, *row)]


def _bar(theme: Theme, top: int, scale: float, label: str, found: Summary) -> list[str]:
    is_ours = label.startswith(OURS)
    middle = top + ROW_HEIGHT / 2
    low, width, high = (LABELS_WIDTH + scale * value for value in (found.low, found.median, found.high))
    shape = f'x="{LABELS_WIDTH}" y="{middle - BAR_HEIGHT / 2:.1f}" height="{BAR_HEIGHT}" rx="2"'
    fill = theme.accent if is_ours else theme.border
    ends = "".join(f" M{x:.1f} {middle - 4:.1f} V{middle + 4:.1f}" for x in (low, high))
    return [
        _text(theme, LABELS_WIDTH - 8, middle + 4, label, anchor="end", is_strong=is_ours),
        f'<rect {shape} width="{max(1.0, width - LABELS_WIDTH):.1f}" fill="{fill}"/>',
        f'<path d="M{low:.1f} {middle:.1f} H{high:.1f}{ends}" fill="none" stroke="{theme.text}" stroke-width="1.2"/>',
        _text(theme, high + 8, middle + 4, f"{number(found.median)} ({number(found.low)}-{number(found.high)})"),
    ]


def _text(
    theme: Theme,
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    anchor: str = "start",
    is_strong: bool = False,
) -> str:
    look = f'fill="{theme.text}" font-weight="600"' if is_strong else f'fill="{theme.muted}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" {look}>{escape(words)}</text>'
