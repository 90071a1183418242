"""Insert a bug into a template, a style sheet, a script or the project's settings, as those who open it read it."""

from __future__ import annotations

import builtins
import io
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("src/taskharbor/dashboard/templates", "src/taskharbor/dashboard/static")
SUFFIXES: Final = frozenset({".css", ".html", ".js", ".toml"})


@dataclass(frozen=True, slots=True)
class FileEdit:
    """A change of a file that is not a module: *old*, which it must contain once, becomes *new*."""

    path: Path
    old: str
    new: str

    def __post_init__(self) -> None:
        found = self.path.read_text("utf-8").count(self.old)
        if found != 1:
            raise LookupError(f"{self.old!r} is {found} times in {self.path.name}")


def is_file(name: str) -> bool:
    """Return whether *name* is that of a file, and not that of a definition."""
    return Path(name).suffix in SUFFIXES


def find_file(name: str) -> Path:
    """Return the file of the dashboard, or of the project, with this *name*."""
    return by_name()[name]


@cache
def by_name() -> Mapping[str, Path]:
    files = [each for folder in FOLDERS for each in (ROOT / folder).iterdir()]
    return {each.name: each for each in (*files, ROOT / "pyproject.toml")}


def plant_files(edits: Iterable[FileEdit]) -> None:
    """Let everything that opens one of these files in this process read it with the bug. No file is changed."""
    planted: dict[str, str] = {}
    for edit in edits:
        name = str(edit.path)
        planted[name] = planted.get(name, edit.path.read_text("utf-8")).replace(edit.old, edit.new)
    original = io.open

    def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        name = os.path.realpath(file) if isinstance(file, str | os.PathLike) else ""
        if name not in planted:
            return original(file, mode, *args, **options)
        return io.BytesIO(planted[name].encode()) if "b" in mode else io.StringIO(planted[name])

    io.open = builtins.open = opened
