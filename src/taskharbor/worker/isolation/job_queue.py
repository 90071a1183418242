"""The jobs that were sent to a child process and that it has not taken yet."""

from __future__ import annotations

import socket
from typing import Final

from taskharbor.worker.isolation.wire import RECEIVE_BYTES

MAX_PACKET_BYTES: Final = RECEIVE_BYTES
"""The size of a job that can wait in this queue. Larger ones are sent over the link of the child, one at a time."""


class JobQueue:
    """A socket of packets, of which each is a job. The child removes one when it runs it, and the worker can, too.

    The kernel gives a packet to one of them. So a job that the worker has taken back was not begun, and will not be.
    """

    def __init__(self) -> None:
        self._entry, self.exit = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def put(self, packet: bytes) -> bool:
        """Add a job; return whether there was space for it."""
        try:
            self._entry.send(packet, socket.MSG_DONTWAIT)
        except OSError:  # the queue is full, or the system allows only smaller packets
            return False
        return True

    def take_back(self) -> list[bytes]:
        """Remove all jobs that the child has not taken, and return them in their order."""
        packets: list[bytes] = []
        while packet := next_packet(self.exit):
            packets.append(packet)
        return packets

    def close(self) -> None:
        self._entry.close()
        self.exit.close()


def next_packet(end: socket.socket) -> bytes:
    """Remove the next packet without waiting, and return it; empty if there is none."""
    try:
        return end.recv(MAX_PACKET_BYTES, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""
