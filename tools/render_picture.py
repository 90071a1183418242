"""Draw the pictures of docs/images, light and dark: python -m tools.render_picture (a test compares the files).

The arrows between states come from the transition table, the boxes of the worker from its pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.states import TRANSITIONS, WAITING, Status
from taskharbor.worker.pipeline import STAGES
from tools import render_sequences
from tools.drawing import THEMES, Box, Theme, arrow, box, heading, rectangle, svg, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH: Final = 800
HEIGHT: Final = 512

NODES: Final = {  # states that share all neighbors share a box
    "waiting": WAITING,
    "running": frozenset({Status.PROCESSING}),
    "succeeded": frozenset({Status.SUCCEEDED}),
    "stopped": frozenset({Status.DEAD, Status.CANCELED}),
    "": frozenset[Status](),  # before the insert and after the removal
}


@dataclass(frozen=True, slots=True)
class Arrow:
    """A polyline with a head at its end, and where its label is centered: (x, first baseline, lines)."""

    points: tuple[tuple[int, int], ...]
    x: int
    y: int
    lines: int = 1


STATE_BOXES: Final = {
    "waiting": Box(96, 330, 150, 86),
    "running": Box(392, 348, 136, 50),
    "succeeded": Box(626, 306, 110, 36),
    "stopped": Box(626, 380, 110, 56),
}
STATE_ARROWS: Final = {
    ("", "waiting"): Arrow(((24, 373), (96, 373)), 58, 366),
    ("waiting", "waiting"): Arrow(((131, 330), (131, 316), (211, 316), (211, 330)), 171, 294, 2),
    ("waiting", "running"): Arrow(((246, 362), (392, 362)), 319, 355),
    ("running", "waiting"): Arrow(((392, 384), (246, 384)), 319, 401, 2),
    ("running", "running"): Arrow(((430, 348), (430, 330), (490, 330), (490, 348)), 460, 308, 2),
    ("running", "succeeded"): Arrow(((528, 362), (626, 326)), 568, 332),
    ("running", "stopped"): Arrow(((528, 384), (626, 406)), 562, 419, 3),
    ("waiting", "stopped"): Arrow(((196, 416), (196, 470), (656, 470), (656, 436)), 426, 464),
    ("stopped", "waiting"): Arrow(((706, 436), (706, 498), (146, 498), (146, 416)), 426, 492),
    ("succeeded", ""): Arrow(((736, 324), (784, 324)), 761, 317),
    ("stopped", ""): Arrow(((736, 408), (784, 408)), 761, 401),
}


def picture(theme: Theme) -> str:
    title = "How TaskHarbor runs a job, and the states of a job"
    return svg(theme, (WIDTH, HEIGHT), title=title, parts=[*worker(theme), *states(theme)])


def life(theme: Theme) -> str:
    """Draw the states alone."""
    top = 246
    moved = [f'<g transform="translate(0 -{top})">', *states(theme), "</g>"]
    return svg(theme, (WIDTH, HEIGHT - top), title="The states of a job, and the events between them", parts=moved)


def worker(theme: Theme) -> list[str]:
    """Draw how a job passes through the store and the stages of a worker."""
    store, heartbeat = Box(142, 64, 118, 126), Box(452, 158, 142, 32)
    stages = [Box(334 + 113 * n, 64, 101, 58) for n in range(len(STAGES))]
    recorder = stages[2]
    return [
        heading(theme, 24, "How a job runs"),
        rectangle(theme, Box(318, 40, 466, 166), dashed=True),
        text(theme, 334, 57, "worker process", size=11, anchor="start"),
        *box(theme, Box(16, 64, 84, 40), "your code"),
        *box(theme, store, "store", "one row per job", "PostgreSQL, SQLite"),
        *(part for at, (name, does) in zip(stages, STAGES.items(), strict=True) for part in box(theme, at, name, does)),
        *box(theme, heartbeat, "lease heartbeat"),
        *(arrow(theme, (a.x + a.width, 93), (b.x, 93)) for a, b in pairwise(stages)),
        arrow(theme, (100, 84), (store.x, 84)),
        text(theme, 121, 77, "insert"),
        arrow(theme, (store.x + store.width, 93), (stages[0].x, 93)),
        text(theme, 288, 86, "lease"),
        arrow(theme, (heartbeat.x, 174), (store.x + store.width, 174)),
        text(theme, 288, 168, "extend"),
        arrow(theme, (recorder.center + 20, 122), (recorder.center + 20, 222), (201, 222), (201, 190)),
        text(theme, 420, 238, "settle: one statement that checks the token"),
    ]


def states(theme: Theme) -> list[str]:
    """Draw the transition table: one arrow for each pair of boxes that an event connects."""
    labels = events_between_boxes()
    parts = [heading(theme, 270, "The states of a job")]
    for name, at in STATE_BOXES.items():
        parts += box(theme, at, *(status for status in Status if status in NODES[name]), is_list=True)
    for pair, events in labels.items():
        drawn = STATE_ARROWS[pair]
        parts.append(arrow(theme, *drawn.points))
        parts += [text(theme, drawn.x, drawn.y + 14 * n, line) for n, line in enumerate(split(events, drawn.lines))]
    return parts


def events_between_boxes() -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for event, transition in TRANSITIONS.items():
        for source in [name for name, inside in NODES.items() if meets(inside, transition.sources)]:
            for target in [name for name, inside in NODES.items() if meets(inside, frozenset(transition.targets))]:
                if is_move(source, target, transition.sources, transition.targets):
                    found.setdefault((source, target), []).append(event)
    return found


def meets(inside: frozenset[Status], statuses: frozenset[Status]) -> bool:
    return bool(inside & statuses) if statuses else not inside


def is_move(source: str, target: str, sources: frozenset[Status], targets: tuple[Status, ...]) -> bool:
    """Return whether a pair of boxes is one of the event's: an event that keeps the state has no other target."""
    return source == target or not (sources == frozenset(targets) and len(sources) > 1)


def split(words: list[str], lines: int) -> list[str]:
    """Return *words* as *lines* lines of about equal length."""
    size = -(-len(words) // lines)
    rows = [words[n : n + size] for n in range(0, len(words), size)]
    return [", ".join(row) + ("," if row is not rows[-1] else "") for row in rows]


DRAWN: Final[Mapping[str, Callable[[Theme], str]]] = MappingProxyType(
    {
        "how-it-works": picture,
        "life-of-a-job": life,
        "delivery": render_sequences.delivery,
        "crash": render_sequences.crash,
    }
)


def pictures() -> dict[Path, str]:
    return {
        FOLDER / f"{name}-{shade}.svg": draw(theme) for name, draw in DRAWN.items() for shade, theme in THEMES.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, drawn in pictures().items():
        path.write_text(drawn, encoding="utf-8")
