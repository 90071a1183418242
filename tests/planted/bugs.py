"""The planted bugs: each is one small change that a programmer could make by mistake.

The files mirror the tests: the bugs in ``worker/recorder.txt`` must be caught by
``tests/worker/test_recorder.py``. Those in ``conformance/`` must be caught by the conformance kit, or by
its module of the same name, those in ``simulation/`` by a simulation in that mode, and those in ``browser/`` by
``tests/dashboard`` in a real browser::

    # a delay is ignored
    @ insert_jobs
    -new.scheduled_for or now + new.delay
    +new.scheduled_for or now

Lines ``> test_name`` before the edits name the tests that must catch it, if the whole file takes long.
A line ``@ Class.method`` names the definition that is edited, in any module. The text of the ``-`` lines must
occur exactly once in it, and is replaced by the ``+`` lines. A bug may have several such edits. A line ``@ app.css``
names a template, a static file of the dashboard, or ``pyproject.toml``; there, too, the text must occur once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.planted.definitions import find
from tests.planted.files import FileEdit, find_file, is_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.planted.definitions import Definition

HERE: Final = Path(__file__).parent
KIT: Final = ("conformance/kit", "conformance/paging", "conformance/races", "conformance/soak")
"""The kit without the cases that need many jobs or threads, and the modules with those cases."""


@dataclass(frozen=True, slots=True)
class Edit:
    definition: str
    old: str
    new: str

    @property
    def is_of_file(self) -> bool:
        return is_file(self.definition)

    def found(self) -> Definition:
        return find(self.definition, self.old)


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    module: str
    tests: str
    edits: tuple[Edit, ...]
    by: tuple[str, ...] = ()
    """The names or node ids of the tests that are run to catch it. If there are none, all tests of its file."""
    files: tuple[FileEdit, ...] = ()
    """Its changes of files that are not modules. If it has no others, *module* is empty."""

    def planted_in(self, source: str) -> str:
        # From the end, so that the positions of earlier edits stay valid.
        for edit in sorted(self.edits, key=lambda edit: edit.found().start, reverse=True):
            found = edit.found()
            at = source.index(edit.old, found.start)
            source = source[:at] + edit.new + source[at + len(edit.old) :]
        return source


def all_bugs() -> list[Bug]:
    files = {str(file.relative_to(HERE).with_suffix("")): file for file in sorted(HERE.rglob("*.txt"))}
    return [bug for tests, file in files.items() for bug in read(file, tests)]


def read(file: Path, tests: str) -> Iterator[Bug]:
    for block in re.split(r"\n(?=# )", file.read_text()):
        name, *lines = block.strip("\n").split("\n")
        by = tuple(line.removeprefix("> ") for line in takewhile(lambda line: line.startswith("> "), lines))
        changes = [*_edits(lines[len(by) :])]
        files = tuple(FileEdit(find_file(each.definition), each.old, each.new) for each in changes if each.is_of_file)
        edits = tuple(each for each in changes if not each.is_of_file)
        modules = {edit.found().module for edit in edits}
        if len(modules) > 1 or not changes:
            raise LookupError(f"{name!r} edits {modules or 'nothing'}")
        yield Bug(name.removeprefix("# "), modules.pop() if modules else "", tests, edits, by, files)


def _edits(lines: list[str]) -> Iterator[Edit]:
    for part in re.split(r"^@ ", "\n".join(lines), flags=re.MULTILINE)[1:]:
        definition, *changes = part.rstrip("\n").split("\n")
        old, new = ("\n".join(line[1:] for line in changes if line[0] == sign) for sign in "-+")
        yield Edit(definition, old, new)
