"""What a child process writes: log records and output, forwarded to the log of the worker within limits."""

from __future__ import annotations

import logging
import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.text import make_storable

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOG: Final = logging.getLogger("taskharbor.output")
MAX_OUTPUT_BYTES: Final = 65_536
"""How much of the output of an attempt is logged. The rest is read, so that the handler does not block, and dropped."""
MAX_LINE_CHARS: Final = 4_096
MAX_LAST_LINES: Final = 40
READ_BYTES: Final = 65_536
MAX_RESTS: Final = 64
_OWN_FRAMES: Final = (f'  File "{Path(__file__).parents[2]}{os.sep}', '  File "<frozen runpy>')


class ChildOutput:
    """The end of a pipe that is stdout and stderr of a child, and the last lines of it and of the log."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._partial = b""
        self._logged_bytes = self._read_bytes = 0
        self._last: deque[str] = deque(maxlen=MAX_LAST_LINES)

    def begin(self) -> None:
        """Begin with an attempt: the limits are those of each."""
        self._logged_bytes, self._partial = 0, b""
        self._last.clear()

    def read(self) -> bool:
        """Read and log what has arrived; return whether the pipe is still open."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._take(data)
        return bool(data)

    def read_rest(self) -> None:
        """Read what is in the pipe; not for longer than it takes to empty a pipe a few times."""
        for _ in range(MAX_RESTS):
            before = self._read_bytes
            if not self.read() or self._read_bytes == before:
                break
        self.flush()

    def flush(self) -> None:
        """Log what was read of a line whose end has not arrived."""
        if self._partial:
            self._line(self._partial)
            self._partial = b""

    def _take(self, data: bytes) -> None:
        self._read_bytes += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > MAX_LINE_CHARS:
            lines.append(self._partial)
            self._partial = b""
        is_over = self._logged_bytes > MAX_OUTPUT_BYTES
        self._logged_bytes += len(data)
        for line in lines[-MAX_LAST_LINES:] if is_over else lines:
            self._line(line, is_logged=not is_over)
        if not is_over and self._logged_bytes > MAX_OUTPUT_BYTES:
            _LOG.warning("this attempt has written more than %d bytes; the rest is not logged", MAX_OUTPUT_BYTES)

    def _line(self, line: bytes, *, is_logged: bool = True) -> None:
        text = make_storable(line[:MAX_LINE_CHARS].decode(errors="replace"), limit=MAX_LINE_CHARS)
        self._last.append(text)
        if is_logged:
            _LOG.info("%s", text)

    def log(self, fields: Mapping[str, Any]) -> None:
        """Log a record that the child has logged."""
        self._last.append(f"{fields['levelname']} {fields['name']}: {fields['msg']}")
        logger = logging.getLogger(fields["name"])
        if logger.isEnabledFor(fields["levelno"]):
            logger.handle(logging.makeLogRecord(dict(fields)))

    def last_lines(self) -> list[str]:
        """Return the last lines, without the frames of this package in the stack that a crash prints."""
        return [line for line in self._last if not line.startswith(_OWN_FRAMES)]

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.descriptor)
