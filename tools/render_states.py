"""Render the transition table as docs/states.md: python -m tools.render_states (a test compares page and table)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from taskharbor.core.states import FINAL, TRANSITIONS, WAITING, Status, Transition

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "states.md"

HEAD: Final = """\
# The life of a job

This page is rendered from `taskharbor.core.states`, which drivers and tests ask too.
*Waiting* means PENDING, ENQUEUED or FAILED; *final* means SUCCEEDED, DEAD or CANCELED;
*exhausted* means that no attempt is left. Every move is one atomic conditional statement: the
guard stands in the statement that makes the move, and where it does not hold nothing changes.

| event | from → to | guard | effects |
|---|---|---|---|
"""


def page() -> str:
    return HEAD + "".join(row(event, transition) for event, transition in TRANSITIONS.items())


def row(event: str, transition: Transition) -> str:
    move = f"{named(transition.sources)} → {named(transition.targets)}"
    return f"| {event} | {move} | {transition.guard} | {transition.effects} |\n"


def named(statuses: frozenset[Status] | tuple[Status, ...]) -> str:
    left = [status for status in Status if status in statuses]
    words = []
    for word, group in (("waiting", WAITING), ("final", FINAL)):
        if group <= set(left):
            words.append(word)
            left = [status for status in left if status not in group]
    return ", ".join([*words, *left]) or "nothing"


if __name__ == "__main__":
    PAGE.write_text(page())
