"""Names for jobs and leases."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from itertools import accumulate, repeat
from struct import unpack
from typing import TYPE_CHECKING, Final, NewType
from uuid import UUID, SafeUUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

JobId = NewType("JobId", UUID)
Token = NewType("Token", UUID)


def new_token() -> Token:
    """Return a lease token that was never used before, in any process: what ``uuid4`` does, in half its time."""
    return Token(uuid_from_int(int.from_bytes(os.urandom(16)) & _RANDOM | _VERSION_4))


class JobIdGenerator:
    """Makes UUIDv7 job ids that grow within a process, whatever its clock does.

    A v7 id is 48 bits of milliseconds and 74 random bits. Within one millisecond
    (and while the clock runs behind the last id) the random part grows by a
    random step instead of being drawn anew, so ids stay ordered, and hard to guess.
    """

    def __init__(
        self,
        *,
        nanoseconds: Callable[[], int] = time.time_ns,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._nanoseconds = nanoseconds
        self._entropy = entropy
        self._chances: list[int] = []
        self._lock = threading.RLock()  # a signal handler that enqueues must not wait for the code it interrupted
        self._last_time = -1
        self._last_tail = 0
        # A child must neither wait for a lock that some thread of its parent held
        # nor go on from the parent's last id, from which the parent goes on too.
        if hasattr(os, "register_at_fork"):  # not where there is no fork
            os.register_at_fork(after_in_child=self._forget)

    def __call__(self) -> JobId:
        with self._lock:
            chance = self._chances.pop() if self._chances else self._draw()
            moment, tail = self._nanoseconds() // 1_000_000, chance >> (80 - _TAIL_BITS + 1)
            if moment <= self._last_time:
                moment, grown = self._last_time, self._last_tail + 1 + chance % (1 << _STEP_BITS)
                # Where the random part has no room left to grow, the time part moves on.
                moment, tail = (moment + 1, tail) if grown >> _TAIL_BITS else (moment, grown)
            self._last_time, self._last_tail = moment, tail
            value = moment << 80 | 0x7 << 76 | 0b10 << 62 | tail >> 62 << 64 | tail & _LOW
        uuid = _new(UUID)  # what uuid_from_int does, without its frame
        _set_int(uuid, value)
        _set_safety(uuid, _UNKNOWN)
        return uuid  # type: ignore[return-value]

    def many(self, count: int) -> list[JobId]:
        """Return *count* ids of one moment, in a third of the time: the clock is asked once, and so is chance."""
        if count == 0:
            return []
        with self._lock:
            first = self()
            steps = unpack(f"!{count - 1}I", self._entropy(_STEP_BITS // 8 * (count - 1)))
            grown = sum(steps) + len(steps)
            if (self._last_tail & _LOW) + grown > _LOW:  # the bits above are not the tail's
                return [first, *(self() for _ in steps)]
            self._last_tail += grown
        return uuids_from_ints(accumulate((1 + step for step in steps), initial=first.int), count)  # type: ignore[return-value]

    def _draw(self) -> int:
        """Ask for entropy once for many ids: each time costs as much as all the rest of an id."""
        drawn = self._entropy(10 * _DRAWN)
        self._chances = [int.from_bytes(drawn[start : start + 10]) for start in range(0, len(drawn), 10)]
        return self._chances.pop()

    def _forget(self) -> None:
        self._chances = []
        self._lock = threading.RLock()
        self._last_time = -1
        self._last_tail = 0


_DRAWN: Final = 64
_TAIL_BITS: Final = 74
_STEP_BITS: Final = 32
_LOW: Final = (1 << 62) - 1


def uuid_from_int(value: int) -> UUID:
    """Return what ``UUID(int=value)`` does, in a third of its time: that one has to find out what it was given."""
    uuid = _new(UUID)
    _set_int(uuid, value)
    _set_safety(uuid, _UNKNOWN)
    return uuid


def uuids_from_ints(values: Iterable[int], count: int) -> list[UUID]:
    """Return what `uuid_from_int` does of each of *values*, in half the time: no step of it is Python's own."""
    uuids = [*map(_new, repeat(UUID, count))]
    deque(map(_set_int, uuids, values), maxlen=0)
    deque(map(_set_safety, uuids, repeat(_UNKNOWN)), maxlen=0)
    return uuids


_new: Final = object.__new__
# The slots themselves: what keeps a UUID from being changed is a method of its class.
_set_int: Final = vars(UUID)["int"].__set__
_set_safety: Final = vars(UUID)["is_safe"].__set__
_VERSION_4: Final = 0x4 << 76 | 0b10 << 62
_RANDOM: Final = (1 << 128) - 1 & ~(0xF << 76 | 0b11 << 62)
_UNKNOWN: Final = SafeUUID.unknown  # to ask the enum for it takes as long as all the rest

# One for the whole process: two factories could not keep ids ordered between them.
new_job_id: Final = JobIdGenerator()
