"""What a worker sends to its child process: jobs, one for each packet, and frames over the link."""

from __future__ import annotations

import fcntl
import select
import struct
import termios
from typing import TYPE_CHECKING, Final

from taskharbor.worker.isolation.job_queue import next_packet
from taskharbor.worker.isolation.wire import parsed_frame

if TYPE_CHECKING:
    import socket

    from taskharbor.worker.isolation.wire import Frame, Wire

_NO_BYTES: Final = bytes(struct.calcsize("i"))


class Inbox:
    """Takes a job out of the queue when the one before it has ended: until then, the worker can take it back.

    *output* is the pipe that handlers write to. While the worker has not read all of it, no job is taken: the output
    of two attempts could not be separated.
    """

    def __init__(self, link: Wire, jobs: socket.socket, output: int) -> None:
        self.link = link
        self._jobs = jobs
        self._output = output
        self._is_open = True
        self._poll = select.poll()
        self._poll.register(link.fileno(), select.POLLIN)
        self._poll_all = select.poll()
        for end in (link, jobs):
            self._poll_all.register(end.fileno(), select.POLLIN)

    def next_job(self) -> Frame | None:
        """Wait for the next job, and return it; None if the worker wants this process to end."""
        while True:
            if self._is_open and (packet := next_packet(self._jobs)):
                return parsed_frame(packet)
            if (frame := self.link.next()) is not None:
                if "run" in frame[0]:
                    return frame
                self._is_open = self._is_open or "continue" in frame[0]  # a stop that came too late has no effect
                continue
            ready = {descriptor for descriptor, _ in (self._poll_all if self._is_open else self._poll).poll()}
            if self.link.fileno() in ready and not self.link.pump():
                return None

    def close_if(self, is_closed: bool) -> bool:  # noqa: FBT001  the name says it
        """Take no more jobs until the worker allows it if *is_closed* or there is output; return whether that is so."""
        self._is_open = not (is_closed or self._has_output())
        return not self._is_open

    def _has_output(self) -> bool:
        try:
            return fcntl.ioctl(self._output, termios.FIONREAD, _NO_BYTES) != _NO_BYTES
        except OSError:  # a handler has closed it
            return True
