"""Frames between a worker, its zygote and its children: JSON with an optional body of bytes, both of limited size."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""The size of the JSON of a frame: the fields of a job, or the texts of a failure."""
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""The size of the body of a frame: a payload or a result, as the store keeps it."""
RECEIVE_BYTES: Final = 65_536
_HEADER: Final = Struct("!II")
_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
"""Not `JsonCodec`: these messages have no tags, and a walk over them would take twice the time."""
MAX_SHOWN_BYTES: Final = 100

Frame = tuple[dict[str, Any], bytes]


class FrameTooLarge(Exception):
    """A frame exceeds its limit, or its header is invalid."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size, self.limit = size, limit

    def __str__(self) -> str:
        return f"{self.size:,} bytes, of at most {self.limit:,}, between a worker and an isolated process"


class Wire:
    """One end of a stream of frames. It never unpickles: a child that is under a handler's control sends the bytes."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._received = bytearray()
        self._header: tuple[int, int] | None = None

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a frame. Raises `OSError` if the other end is gone, and `FrameTooLarge`."""
        self.socket.sendall(frame_of(message, body))

    def send_now(self, message: Mapping[str, Any]) -> None:
        """Send a short frame without waiting. Does nothing if the other end is gone or does not read."""
        with suppress(OSError):
            self.socket.send(frame_of(message), socket.MSG_DONTWAIT)

    def next(self) -> Frame | None:
        """Return a frame that was received completely, or None. Raises `FrameTooLarge`, and `ValueError`."""
        received = self._received
        if self._header is None:
            if len(received) < _HEADER.size:
                return None
            self._header = sizes = _HEADER.unpack_from(received)
            for size, limit in zip(sizes, (MAX_MESSAGE_BYTES, MAX_BODY_BYTES), strict=True):
                if size > limit:
                    raise FrameTooLarge(size, limit)
        text_end = _HEADER.size + self._header[0]
        end = text_end + self._header[1]
        if len(received) < end:
            return None
        text, body = bytes(received[_HEADER.size : text_end]), bytes(received[text_end:end])
        del received[:end]
        self._header = None
        return _parsed(text), body

    def pump(self, *, blocks: bool = True) -> bool:
        """Receive what has arrived; return whether the other end is still there.

        Raises `BlockingIOError` unless it *blocks*, and `TimeoutError` if the socket has a timeout.
        """
        try:
            data = self.socket.recv(RECEIVE_BYTES, 0 if blocks else socket.MSG_DONTWAIT)
        except (BlockingIOError, TimeoutError):
            raise
        except OSError:  # the other end has crashed, or this one was closed
            return False
        self._received += data
        return bool(data)

    def receive(self) -> Frame | None:
        """Wait for a frame, and return it; None if the other end is gone. Raises `TimeoutError`, as `pump`."""
        while (frame := self.next()) is None:
            if not self.pump():
                return None
        return frame

    def close(self) -> None:
        self.socket.close()


def parsed_frame(data: bytes) -> Frame:
    """Return the frame that is all of *data*, as a packet is. Raises `ValueError` if it is none."""
    if len(data) < _HEADER.size:
        raise ValueError(data)
    text_end = _HEADER.size + _HEADER.unpack_from(data)[0]
    return _parsed(data[_HEADER.size : text_end]), data[text_end:]


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except RecursionError:
        message = None
    if type(message) is not dict:
        raise ValueError(text[:MAX_SHOWN_BYTES])
    return message


def frame_of(message: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return the bytes of a frame. Raises `FrameTooLarge`."""
    if len(body) > MAX_BODY_BYTES:
        raise FrameTooLarge(len(body), MAX_BODY_BYTES)
    text = _ENCODE(message).encode()
    if len(text) > MAX_MESSAGE_BYTES:
        raise FrameTooLarge(len(text), MAX_MESSAGE_BYTES)
    return b"".join((_HEADER.pack(len(text), len(body)), text, body))
