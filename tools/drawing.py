"""Shapes of SVG pictures, in a light and a dark theme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

FONTS: Final = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif"


@dataclass(frozen=True, slots=True)
class Theme:
    background: str
    text: str
    muted: str
    line: str
    box: str
    border: str
    accent: str


THEMES: Final = {
    "light": Theme("#ffffff", "#1f2328", "#57606a", "#57606a", "#f6f8fa", "#8c959f", "#0969da"),
    "dark": Theme("#0d1117", "#e6edf3", "#9da7b3", "#9da7b3", "#161b22", "#6e7681", "#58a6ff"),
}


@dataclass(frozen=True, slots=True)
class Box:
    x: int
    y: int
    width: int
    height: int

    @property
    def center(self) -> int:
        return self.x + self.width // 2


def svg(theme: Theme, size: tuple[int, int], *, title: str, parts: Sequence[str]) -> str:
    """Return a picture of *size* with a background, a title for screen readers, and heads for arrows."""
    width, height = size
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-labelledby="title" font-family="{FONTS}">',
        f'<title id="title">{escape(title)}</title>',
        f'<defs>{head}<path d="M0 0 L8 4 L0 8 z" fill="{theme.line}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="8" fill="{theme.background}"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def heading(theme: Theme, y: int, words: str) -> str:
    return f'<text x="16" y="{y}" font-size="15" font-weight="600" fill="{theme.text}">{escape(words)}</text>'


def box(theme: Theme, at: Box, *lines: str, is_list: bool = False) -> list[str]:
    """Draw a box with a title and smaller lines below it, or with lines that are all titles."""
    sizes = [13 if is_list or not n else 11 for n in range(len(lines))]
    first = at.y + at.height // 2 + 5 - 9 * (len(lines) - 1)
    texts = [
        text(theme, at.center, first + 18 * n, line, size=size, is_strong=size > 11)
        for n, (line, size) in enumerate(zip(lines, sizes, strict=True))
    ]
    return [rectangle(theme, at), *texts]


def rectangle(theme: Theme, at: Box, *, dashed: bool = False) -> str:
    look = f'fill="none" stroke="{theme.border}" stroke-dasharray="4 4"' if dashed else ""
    solid = f'fill="{theme.box}" stroke="{theme.accent}"'
    return f'<rect x="{at.x}" y="{at.y}" width="{at.width}" height="{at.height}" rx="6" {look or solid}/>'


def arrow(theme: Theme, *points: tuple[int, int]) -> str:
    path = " L".join(f"{x} {y}" for x, y in points)
    return f'<path d="M{path}" fill="none" stroke="{theme.line}" stroke-width="1.4" marker-end="url(#head)"/>'


def text(
    theme: Theme, x: int, y: int, words: str, *, size: int = 12, anchor: str = "middle", is_strong: bool = False
) -> str:
    color, weight = (theme.text, ' font-weight="600"') if is_strong else (theme.muted, "")
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{color}"{weight}>{escape(words)}</text>'
    )
