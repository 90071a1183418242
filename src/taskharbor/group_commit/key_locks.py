"""One statement at a time for each idempotency key."""

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
"""How long a statement waits for its turn. By default a driver waits half as long for a key that is held."""
FORGET_SECONDS: Final = 120.0
"""After this time a ticket counts no more: Ctrl-C may have struck while it was being removed."""


def keys_of(jobs: Iterable[NewJob]) -> frozenset[Key]:
    """Return the keys that an insert of *jobs* may have to wait for."""
    return frozenset((job.queue, job.idempotency_key) for job in jobs if job.idempotency_key is not None)


class KeyLocks:
    """Admits one statement at a time for each idempotency key, of threads and coroutines alike.

    An open transaction may hold a key. An insert with that key then waits inside the store, and occupies a
    connection and a thread. Without a bound a few callers with one key occupy all of them. So only the first
    caller waits inside the store; the others wait here, in the order in which they came. A statement with
    several keys starts when it is first in line for each of them. All keys of a statement are entered in one
    step, so two statements never wait for each other.

    Why every wait ends: a statement inside the store ends by the driver's deadline, and starts those behind
    it. A caller that has waited for `KEY_TIMEOUT_SECONDS` fails instead of starting.
    """

    def __init__(self) -> None:
        self.pid: Final = os.getpid()
        """The process that it belongs to: tickets of the parent's threads never leave in a forked process."""
        self._lock = threading.RLock()  # a signal handler that enqueues must not wait for the code it interrupted
        self._last: dict[Key, KeyWaiter] = {}
        self._here = threading.local()

    @contextmanager
    def hold(self, keys: frozenset[Key]) -> Iterator[None]:
        """Wait in this thread for the turn of *keys*, and keep it until the end of the block."""
        if not keys or getattr(self._here, "is_inside", False):  # a signal handler must not wait for its own thread
            yield
            return
        turn: SimpleQueue[None] = SimpleQueue()
        ticket = KeyWaiter(keys, lambda _: _put(turn))
        self._here.is_inside = True
        try:
            self.enter(ticket)
            try:
                turn.get(timeout=KEY_TIMEOUT_SECONDS)
            except Empty:
                raise ticket.refusal() from None
            yield
        finally:
            self._here.is_inside = False
            self.leave(ticket)

    def enter(self, ticket: KeyWaiter) -> None:
        """Let *ticket* start as soon as no statement ahead of it has one of its keys."""
        with self._lock:
            for key in ticket.keys:
                ahead = self._last.get(key)
                if ahead is not None and ticket.entered - ahead.entered < FORGET_SECONDS:
                    ahead.behind[ticket] = None
                    ticket.ahead.add(ahead)
                self._last[key] = ticket
            is_first = not ticket.ahead
        if is_first:
            self._start([ticket])

    def leave(self, ticket: KeyWaiter) -> None:
        """Free the keys of *ticket*, whether it has started or not, and start what waited for them."""
        self._start(self._removed(ticket))

    def _start(self, tickets: Sequence[KeyWaiter]) -> None:
        ready = deque(tickets)
        while ready:
            ticket = ready.popleft()
            if not ticket.start(ticket):
                ready.extend(self._removed(ticket))

    def _removed(self, ticket: KeyWaiter) -> list[KeyWaiter]:
        """Remove *ticket*, and return those whose turn it is now."""
        with self._lock:
            if ticket.ahead:
                ticket.start = _not_needed  # it keeps its place: those behind it must wait for those ahead of it
                return []
            for key in ticket.keys:
                if self._last.get(key) is ticket:
                    del self._last[key]
            for each in ticket.behind:
                each.ahead.discard(ticket)
            ready = [each for each in ticket.behind if not each.ahead]
            ticket.behind.clear()
            return ready


class KeyWaiter:
    """A statement that waits for its keys. *start* returns False if the statement no longer needs its turn."""

    __slots__ = ("ahead", "behind", "entered", "keys", "start")

    def __init__(self, keys: frozenset[Key], start: Callable[[KeyWaiter], bool]) -> None:
        self.keys = keys
        self.start = start
        self.entered = time.monotonic()
        self.ahead: set[KeyWaiter] = set()
        self.behind: dict[KeyWaiter, None] = {}

    def is_late(self) -> bool:
        """Return whether it has waited for so long that it must fail."""
        return time.monotonic() - self.entered > KEY_TIMEOUT_SECONDS

    def refusal(self) -> StoreUnavailable:
        queue, key = min(self.keys)
        more = f" (or one of {len(self.keys) - 1} others)" if len(self.keys) > 1 else ""
        waited = time.monotonic() - self.entered
        return StoreUnavailable(
            f"another enqueue with idempotency key {key!r} in queue {queue!r}{more} has waited for the store for "
            f"{waited:.0f} s, probably for a transaction that holds the key; this one was not sent"
        )


def _put(turn: SimpleQueue[None]) -> bool:
    turn.put(None)
    return True


def _not_needed(_ticket: KeyWaiter) -> bool:
    return False
