"""Counts handler starts across processes, without a lock between them: each process writes a file of its own.

A file holds the number of starts, the time of the first one, and up to `MAX_SAMPLES` start latencies. It is
imported by the workers of every Python system, so it imports nothing but the standard library.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path

MAX_SAMPLES = 4_096
FOLDER_VARIABLE = "BENCH_TICKS"
_HEAD = struct.Struct("<qd")
_SAMPLE = struct.Struct("<d")
_SIZE = _HEAD.size + MAX_SAMPLES * _SAMPLE.size


class Ticks:
    """The counter of this process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / str(os.getpid()), os.O_RDWR | os.O_CREAT)
        os.ftruncate(file, _SIZE)
        self._map = mmap.mmap(file, _SIZE)
        os.close(file)
        self._lock = threading.Lock()  # sync handlers run in several threads
        self._count, first = _HEAD.unpack_from(self._map)  # of an ended process that had the same id, if any
        if not first:
            _HEAD.pack_into(self._map, 0, 0, time.time())
        self._shown = memoryview(self._map)[:8].cast("q")  # to write an item takes a fifth of the time of a struct

    def add(self, enqueued_at: float | None) -> None:
        with self._lock:
            if enqueued_at is not None and self._count < MAX_SAMPLES:
                late = max(time.time() - enqueued_at, 1e-9)
                _SAMPLE.pack_into(self._map, _HEAD.size + self._count * _SAMPLE.size, late)
            self._count += 1
            self._shown[0] = self._count


_ticks: Ticks | None = None
_starting = threading.Lock()


def tick(enqueued_at: float | None = None) -> None:
    """Count the start of a handler; *enqueued_at* is the time at which its job was enqueued."""
    global _ticks  # noqa: PLW0603  one counter for each process, also after a fork
    if _ticks is None:
        with _starting:
            if _ticks is None:
                _ticks = Ticks(Path(os.environ[FOLDER_VARIABLE]))  # noqa: TID251  set by the benchmark
    _ticks.add(enqueued_at)


def read(folder: Path) -> tuple[int, float | None, list[float]]:
    """Return the number of starts in all processes, the time of the first, and the latencies in seconds."""
    total, firsts, latencies = 0, [], []
    for path in folder.glob("*"):
        with path.open("rb") as file:  # a system that starts a process for each job has many of them: read little
            head = file.read(_HEAD.size)
            count, first = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0.0)
            samples = file.read(min(count, MAX_SAMPLES) * _SAMPLE.size)
        total += count
        firsts += [first] if count else []
        latencies += [value for (value,) in _SAMPLE.iter_unpack(samples) if value > 0]
    return total, min(firsts, default=None), latencies
