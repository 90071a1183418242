"""Label values whose number is bounded: the metrics of a process must not grow with the names that it sees."""

from __future__ import annotations

import threading
from typing import Final

MAX_QUEUES: Final = 200
MAX_TYPES: Final = 200
MAX_PAIRS: Final = 1_000
"""How many combinations of queue and type have metrics of their own."""
OTHER: Final = "other"


class BoundedLabels:
    """The names that are labels: the first *limit* that are seen. All others are `OTHER`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._known: set[str] = set()

    def get(self, name: str) -> str:
        if name in self._known:
            return name
        with self._lock:
            if len(self._known) < self._limit:
                self._known.add(name)
        return name if name in self._known else OTHER


class JobLabels:
    """The labels of jobs: their queue, and their queue and type."""

    def __init__(self) -> None:
        self._queues = BoundedLabels(MAX_QUEUES)
        self._types = BoundedLabels(MAX_TYPES)
        self._pairs: set[tuple[str, str]] = set()

    def queue(self, name: str) -> str:
        return self._queues.get(name)

    def pair(self, queue: str, type_name: str) -> tuple[str, str]:
        pair = self._queues.get(queue), self._types.get(type_name)
        if pair not in self._pairs:
            if len(self._pairs) >= MAX_PAIRS:
                return pair[0], OTHER
            self._pairs.add(pair)
        return pair
