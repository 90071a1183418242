"""Locks for idempotency keys: one insert statement at a time for each key."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from taskharbor.core.model import NewJob

    Key = tuple[str, str]

KEY_TIMEOUT_SECONDS: Final = 10.0
"""How long a statement waits for its keys. By default a driver waits half as long for a key that is held."""
FORGET_SECONDS: Final = 120.0
"""After this time a waiter no longer counts: a KeyboardInterrupt may have prevented its removal."""


def keys_of(jobs: Iterable[NewJob]) -> frozenset[Key]:
    """Return the keys that an insert of *jobs* may have to wait for."""
    return frozenset((job.queue, job.idempotency_key) for job in jobs if job.idempotency_key is not None)


class KeyLocks:
    """Locks that admit one statement at a time for each idempotency key, for threads and coroutines.

    An open transaction may hold a key. An insert with that key then waits inside the store, and occupies a
    connection and a thread. Without a limit, a few callers with one key would occupy all of them. So only the
    first caller waits inside the store; the others wait here, in the order in which they came. A statement with
    several keys starts when no earlier statement has one of them. All keys of a statement are entered in one
    step, so two statements never wait for each other.

    Every wait ends: a statement inside the store ends by the driver's deadline, and then starts the next ones.
    A caller that has waited for `KEY_TIMEOUT_SECONDS` fails instead of starting.
    """

    def __init__(self) -> None:
        self.pid: Final = os.getpid()
        """The process that it belongs to: waiters of the parent's threads never leave in a forked process."""
        self._lock = threading.RLock()  # a signal handler that enqueues must not wait for the code it interrupted
        self._last: dict[Key, KeyWaiter] = {}
        self._local = threading.local()

    @contextmanager
    def hold(self, keys: frozenset[Key]) -> Iterator[None]:
        """Wait in this thread until *keys* are free, and hold them until the end of the block."""
        if not keys or getattr(self._local, "is_inside", False):  # a signal handler must not wait for its own thread
            yield
            return
        is_free: SimpleQueue[None] = SimpleQueue()
        waiter = KeyWaiter(keys, lambda _: _signal(is_free))
        self._local.is_inside = True
        try:
            self.enter(waiter)
            try:
                is_free.get(timeout=KEY_TIMEOUT_SECONDS)
            except Empty:
                raise waiter.timeout_error() from None
            yield
        finally:
            self._local.is_inside = False
            self.leave(waiter)

    def enter(self, waiter: KeyWaiter) -> None:
        """Start *waiter* as soon as no statement ahead of it has one of its keys."""
        with self._lock:
            for key in waiter.keys:
                ahead = self._last.get(key)
                if ahead is not None and waiter.entered - ahead.entered < FORGET_SECONDS:
                    ahead.behind[waiter] = None
                    waiter.ahead.add(ahead)
                self._last[key] = waiter
            is_first = not waiter.ahead
        if is_first:
            self._start([waiter])

    def leave(self, waiter: KeyWaiter) -> None:
        """Free the keys of *waiter*, whether it has started or not, and start the statements that waited for them."""
        self._start(self._remove(waiter))

    def _start(self, waiters: Sequence[KeyWaiter]) -> None:
        ready = deque(waiters)
        while ready:
            waiter = ready.popleft()
            if not waiter.start(waiter):
                ready.extend(self._remove(waiter))

    def _remove(self, waiter: KeyWaiter) -> list[KeyWaiter]:
        """Remove *waiter*, and return the waiters that can start now."""
        with self._lock:
            if waiter.ahead:
                waiter.start = _do_not_start  # it keeps its place: those behind it must wait for those ahead of it
                return []
            for key in waiter.keys:
                if self._last.get(key) is waiter:
                    del self._last[key]
            for each in waiter.behind:
                each.ahead.discard(waiter)
            ready = [each for each in waiter.behind if not each.ahead]
            waiter.behind.clear()
            return ready


class KeyWaiter:
    """A statement that waits for its keys. *start* returns False if the statement is not run after all."""

    __slots__ = ("ahead", "behind", "entered", "keys", "start")

    def __init__(self, keys: frozenset[Key], start: Callable[[KeyWaiter], bool]) -> None:
        self.keys = keys
        self.start = start
        self.entered = time.monotonic()
        self.ahead: set[KeyWaiter] = set()
        self.behind: dict[KeyWaiter, None] = {}

    def has_timed_out(self) -> bool:
        """Return whether it has waited longer than `KEY_TIMEOUT_SECONDS`."""
        return time.monotonic() - self.entered > KEY_TIMEOUT_SECONDS

    def timeout_error(self) -> StoreUnavailable:
        """Return the error of a statement that has waited too long."""
        queue, key = min(self.keys)
        more = f" (or one of {len(self.keys) - 1} others)" if len(self.keys) > 1 else ""
        waited = time.monotonic() - self.entered
        return StoreUnavailable(
            f"waited {waited:.0f} s for another enqueue with idempotency key {key!r} in queue {queue!r}{more}, "
            "which probably waits for an open transaction that holds the key; this job was not sent"
        )


def _signal(is_free: SimpleQueue[None]) -> bool:
    is_free.put(None)
    return True


def _do_not_start(_waiter: KeyWaiter) -> bool:
    return False
