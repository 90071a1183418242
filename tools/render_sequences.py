"""Draw how a job moves between processes: one line for each step, with the job's status after it.

The status comes from the transition table: a step that the table does not allow cannot be drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.states import TRANSITIONS, Event, Status, next_statuses
from tools.drawing import Box, Theme, arrow, box, heading, svg, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH: Final = 800
ROW: Final = 34
TOP: Final = 44  # from the heading to the first step
STATUS_X: Final = 700
REFUSED: Final[Mapping[str, str]] = MappingProxyType({"#ffffff": "#cf222e", "#0d1117": "#ff7b72"})
"""The color of what is refused, by the background."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call or message from one actor to another. If it has an event, that moves the job."""

    source: str
    target: str
    label: str
    event: Event | None = None
    becomes: Status | None = None  # if the event has several targets
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Steps between actors, below a heading."""

    title: str
    actors: Sequence[str]
    steps: Sequence[Step]

    @property
    def height(self) -> int:
        return TOP + 44 + ROW * len(self.steps)


POLLING: Final = Lanes(
    title="Polling: workers ask the store",
    actors=["your code", "store", "worker"],
    steps=[
        Step(source="your code", target="store", label="enqueue", event=Event.INSERT),
        Step(source="store", target="worker", label="notify: a job is due"),
        Step(source="worker", target="store", label="claim due jobs", event=Event.RESERVE),
        Step(source="worker", target="store", label="settle", event=Event.ACK),
    ],
)
MESSAGES: Final = Lanes(
    title="SQS: messages carry ids, the store decides",
    actors=["your code", "store", "enqueuer", "SQS", "worker"],
    steps=[
        Step(source="your code", target="store", label="enqueue", event=Event.INSERT),
        Step(source="enqueuer", target="store", label="mark due jobs", event=Event.DISPATCH),
        Step(source="enqueuer", target="SQS", label="the id", event=Event.SENT),
        Step(source="SQS", target="worker", label="the id"),
        Step(source="worker", target="store", label="claim by id", event=Event.CLAIM),
        Step(source="worker", target="store", label="settle", event=Event.ACK),
        Step(source="worker", target="SQS", label="delete"),
    ],
)
CRASH: Final = Lanes(
    title="A worker stops in the middle of a job",
    actors=["worker A", "store", "worker B"],
    steps=[
        Step(source="worker A", target="store", label="claim: token 1, a lease of 30 s", event=Event.RESERVE),
        Step(source="worker A", target="store", label="heartbeat: extend the lease", event=Event.EXTEND),
        Step(source="worker A", target="worker A", label="killed, suspended or cut off"),
        Step(source="store", target="store", label="30 s later: the lease has expired"),
        Step(source="worker B", target="store", label="claim again: token 2", event=Event.RECLAIM),
        Step(source="worker A", target="store", label="settle with token 1: refused", refused=True),
        Step(source="worker B", target="store", label="settle with token 2", event=Event.ACK),
    ],
)


def delivery(theme: Theme) -> str:
    title = "The two ways of delivery: polling, and messages of SQS"
    parts = [*drawn(theme, POLLING, top=0), *drawn(theme, MESSAGES, top=POLLING.height)]
    return svg(theme, (WIDTH, POLLING.height + MESSAGES.height), title=title, parts=parts)


def crash(theme: Theme) -> str:
    parts = drawn(theme, CRASH, top=0, status=Status.PENDING)
    return svg(
        theme, (WIDTH, CRASH.height), title="What happens when a worker stops in the middle of a job", parts=parts
    )


def drawn(theme: Theme, sequence: Lanes, *, top: int, status: Status | None = None) -> list[str]:
    places = columns(sequence.actors)
    bottom = top + sequence.height - 12
    parts = [heading(theme, top + 24, sequence.title), text(theme, STATUS_X, top + 62, "status of the job", size=11)]
    for name, x in places.items():
        parts.append(f'<path d="M{x} {top + 72} L{x} {bottom}" stroke="{theme.border}" stroke-dasharray="3 5"/>')
        parts += box(theme, Box(x - 46, top + TOP, 92, 28), name)
    for number, step in enumerate(sequence.steps):
        y = top + TOP + 62 + ROW * number
        status = status_after(step, status)
        parts += lines_of(theme, step, places, y)
        parts.append(text(theme, STATUS_X, y, status or "", is_strong=step.event is not None))
    return parts


def status_after(step: Step, status: Status | None) -> Status | None:
    """Return the job's status after *step*, or raise `ValueError` if the transition table does not allow the step."""
    if step.event is None:
        return status
    allowed = TRANSITIONS[step.event].targets if status is None else next_statuses(status, step.event)
    if not allowed or (status is None) != (step.event is Event.INSERT):
        raise ValueError(f"a job that is {status} cannot {step.event}")
    return step.becomes or allowed[0]


def columns(actors: Sequence[str]) -> dict[str, int]:
    first, last = 70, 560
    return {name: first + (last - first) * n // (len(actors) - 1) for n, name in enumerate(actors)}


def lines_of(theme: Theme, step: Step, places: Mapping[str, int], y: int) -> list[str]:
    start, end = places[step.source], places[step.target]
    if start == end:
        return [on_background(theme, text(theme, max(start, 110), y, step.label))]
    gap = 4 if end > start else -4
    line = arrow(theme, (start + gap, y + 6), (end - gap, y + 6))
    words = on_background(theme, text(theme, (start + end) // 2, y, step.label))
    if step.refused:
        color = REFUSED[theme.background]
        line = line.replace(f'stroke="{theme.line}"', f'stroke="{color}" stroke-dasharray="5 3"')
        words = words.replace(f'fill="{theme.muted}"', f'fill="{color}"')
    return [line, words]


def on_background(theme: Theme, words: str) -> str:
    """Return a text with an outline in the color of the background, which hides the lines behind it."""
    return words.replace("<text ", f'<text stroke="{theme.background}" stroke-width="4" paint-order="stroke" ', 1)
