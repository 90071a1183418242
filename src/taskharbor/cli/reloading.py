"""Seeing that files were saved, by looking: it works on every file system, and needs nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_SKIPPED: Final = {"__pycache__", "node_modules", "site-packages"}
_ENVIRONMENT: Final = "pyvenv.cfg"
MAX_WATCHED_FILES: Final = 5_000  # files; looking at more would cost more than it tells


class FileWatcher:
    """The Python files of a folder, and which of them changed since the last look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = dict(self._look())

    def changed(self) -> list[str]:
        """Return the files that were saved, made or removed since the last look."""
        now = dict(self._look())
        changed = {file for file, _ in now.items() ^ self._seen.items()}
        self._seen = now
        return sorted(os.path.relpath(file, self._folder) for file in changed)

    def _look(self) -> Iterator[tuple[str, tuple[int, int]]]:
        left = MAX_WATCHED_FILES
        for place, folders, files in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if _is_watched(Path(place, name)))
            for name in files:
                if name.endswith(".py") and left:
                    left -= 1
                    yield from _stamp(os.path.join(place, name))  # noqa: PTH118  a Path for each file takes thrice the time


def _is_watched(folder: Path) -> bool:
    return not folder.name.startswith(".") and folder.name not in _SKIPPED and not (folder / _ENVIRONMENT).exists()


def _stamp(file: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        found = os.stat(file)  # noqa: PTH116  as above
    except OSError:  # an editor may be about to replace it
        return
    yield file, (found.st_mtime_ns, found.st_size)
