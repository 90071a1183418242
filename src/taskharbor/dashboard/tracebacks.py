"""Splits a traceback into parts, so that the frames of libraries can be folded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_FRAME: Final = re.compile(r'^  File "(?P<file>[^"]*)", line \d+')
_LIBRARY: Final = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python3\.\d+)/|(?:^|/)taskharbor/")


@dataclass(frozen=True, slots=True)
class TracebackPart:
    """Lines that belong together: frames of libraries, or frames of the application and everything else."""

    text: str
    frames: int
    is_library: bool


def split_traceback(text: str) -> list[TracebackPart]:
    """Return the parts of a traceback in their order.

    >>> [(part.is_library, part.frames) for part in split_traceback('  File "app.py", line 1, in pay')]
    [(False, 1)]
    """
    parts: list[tuple[bool, int, list[str]]] = []
    is_library = False
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            is_library = _LIBRARY.search(frame["file"]) is not None
        elif not line.startswith("    "):  # the first line, the error, or a note between two tracebacks
            is_library = False
        if not parts or parts[-1][0] is not is_library:
            parts.append((is_library, 0, []))
        folded, frames, lines = parts[-1]
        parts[-1] = (folded, frames + (frame is not None), [*lines, line])
    return [TracebackPart("\n".join(lines), frames, folded) for folded, frames, lines in parts]
