"""The bugs that are planted: each is one small change that a tired engineer could make.

They stand in folders by what must catch them: ``kit``, its ``paging``, ``racing`` and ``soaking``, the
``simulation``, that with ``messages``, the file that the folder names (``joining.refused``:
tests/joining/test_refused.py), or the module's own tests. There is one file for each module of TaskHarbor::

    # a delay is ignored
    -new.scheduled_for or now + new.delay
    +new.scheduled_for or now

A line ``> test_name`` before the edits names the test that must catch it: a whole file may take long.
What the ``-`` lines say stands exactly once in the module, and gives way to the ``+``
lines. A bug may have several such edits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE: Final = Path(__file__).parent
KIT: Final = ("kit", "paging", "racing", "soaking")
"""All of the kit, but for what needs many jobs or threads; and the parts of it that do."""
WORLDS: Final = "simulation"
"""What only a world where everything goes wrong brings to light."""
MESSAGES: Final = "messages"
"""And what only one does in which messages go wrong, too."""


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    module: str
    tests: str
    edits: tuple[tuple[str, str], ...]
    by: str | None = None
    """The test that must catch it, by its name or its node; any of its file, if there is none."""

    def planted_in(self, source: str) -> str:
        for old, new in self.edits:
            if source.count(old) != 1:
                raise LookupError(f"{self.name}: {old!r} stands {source.count(old)} times in {self.module}")
            source = source.replace(old, new)
        return source


def all_bugs() -> list[Bug]:
    return [bug for file in sorted(HERE.glob("*/*.txt")) for bug in read(file)]


def read(file: Path) -> Iterator[Bug]:
    for block in re.split(r"\n(?=# )", file.read_text()):
        name, *lines = block.strip("\n").split("\n")
        by = lines.pop(0).removeprefix("> ") if lines[0].startswith("> ") else None
        yield Bug(name.removeprefix("# "), f"taskharbor.{file.stem}", file.parent.name, tuple(_edits(lines)), by)


def _edits(lines: list[str]) -> Iterator[tuple[str, str]]:
    old = ""
    for sign, group in groupby(lines, key=lambda line: line[0]):
        text = "\n".join(line[1:] for line in group)
        if sign == "+":
            yield old, text
            old = ""
        else:
            old = text
    if old:
        yield old, ""
