"""Retry policies: after which delays a failed job is retried, and after which errors."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from taskharbor.core.durations import Duration, as_timedelta
from taskharbor.core.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taskharbor.core.ids import JobId


class Backoff(Protocol):
    """The delay after an attempt, in seconds or as a timedelta; None to give up.

    *chance* is a number in [0, 1) for jitter. It is equal for the same job and attempt, so that a
    decision can be repeated, and differs between jobs.
    """

    def delay(self, attempt: int, *, chance: float) -> Duration | None: ...


@dataclass(frozen=True, slots=True, init=False)
class Exponential:
    """Wait *base* after the first attempt and *factor* times longer after each further one, up to *cap*.

    *base* and *cap* are numbers of seconds or timedeltas.

    *jitter* is the fraction of a delay that is subtracted at random, so that jobs that failed
    together are not retried together.

    >>> [Exponential(jitter=0).delay(n, chance=0) // timedelta(seconds=1) for n in (1, 2, 3, 10**6)]
    [5, 10, 20, 3600]
    """

    base: timedelta
    factor: float
    cap: timedelta
    jitter: float

    def __init__(
        self,
        base: Duration = timedelta(seconds=5),
        factor: float = 2.0,
        cap: Duration = timedelta(hours=1),
        jitter: float = 0.25,
    ) -> None:
        values = {"base": _wait(base, "base"), "factor": factor, "cap": _wait(cap, "cap"), "jitter": jitter}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        _require(self.base <= self.cap, "base", self.base, f"must be at most cap, which is {self.cap}")
        _require(1 <= self.factor < math.inf, "factor", self.factor, "must be at least 1")
        _require(0 <= self.jitter < 1, "jitter", self.jitter, "must be at least 0 and below 1")

    def delay(self, attempt: int, *, chance: float) -> timedelta:
        # Compare exponents first: 2.0 ** 1024 overflows.
        steps = max(attempt, 1) - 1
        reaches_cap = self.factor > 1 and steps >= math.log(self.cap / self.base, self.factor)
        full = self.cap if reaches_cap else self.base * self.factor**steps
        return max(min(full, self.cap) * (1 - self.jitter * chance), timedelta.resolution)


@dataclass(frozen=True, slots=True, init=False)
class Fixed:
    """Wait the same time after every attempt: ``Fixed(30)`` waits 30 seconds."""

    wait: timedelta

    def __init__(self, wait: Duration) -> None:
        object.__setattr__(self, "wait", _wait(wait, "wait"))

    def delay(self, attempt: int, *, chance: float) -> timedelta:  # noqa: ARG002  part of the protocol
        return self.wait


@dataclass(frozen=True, slots=True)
class Never:
    """Give up at the first failure."""

    def delay(self, attempt: int, *, chance: float) -> None:  # noqa: ARG002  part of the protocol
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """After which delays a failed job is retried, and which errors end it. Workers decide by it.

    How many attempts a job has is stored with the job, when it is enqueued: see *max_attempts* of `Harbor`,
    `Harbor.task`, `Client` and `JobRequest`.

    *backoff* is one of `Exponential`, `Fixed` and `Never`, or a function from the attempt number to
    a delay in seconds or as a timedelta (None to give up). *rules* maps error classes to their own
    backoff. Errors of the classes in *give_up_on* are not retried. The class closest to the error's
    own in its MRO decides.

    >>> RetryPolicy(rules={TimeoutError: Fixed(1)}, give_up_on=(ValueError,))
    ... # doctest: +ELLIPSIS
    RetryPolicy(...)
    """

    backoff: Backoff | Callable[[int], Duration | None] = field(default_factory=Exponential)
    rules: Mapping[type[BaseException], Backoff | Callable[[int], Duration | None]] = field(default_factory=dict)
    give_up_on: tuple[type[BaseException], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for backoff in (self.backoff, *self.rules.values()):
            _require(
                _is_backoff(backoff), "backoff", backoff, "must be Exponential(…), Fixed(…), Never() or a function"
            )
        for kinds in (self.give_up_on, tuple(self.rules)):
            _require(_are_errors(kinds), "give_up_on", kinds, "must be a tuple of exception classes")

    def delay(self, job_id: JobId, attempt: int, error: BaseException) -> timedelta | None:
        """Return how long to wait after *attempt* of this job failed with *error*; None to give up."""
        backoff = self._backoff_for(error)
        if callable(backoff):
            delay = backoff(attempt)
        else:
            delay = backoff.delay(attempt, chance=_chance(self.seed, job_id, attempt))
        return None if delay is None else as_timedelta(delay, "delay")

    def _backoff_for(self, error: BaseException) -> Backoff | Callable[[int], Duration | None]:
        for kind in type(error).__mro__:
            if kind in self.give_up_on:
                return Never()
            if kind in self.rules:
                return self.rules[kind]
        return self.backoff


def _chance(seed: int, job_id: JobId, attempt: int) -> float:
    material = b"%d:%b:%d" % (seed, job_id.bytes, attempt)
    return int.from_bytes(hashlib.blake2b(material, digest_size=7).digest()) / (1 << 56)


def _is_backoff(value: object) -> bool:
    return not isinstance(value, type) and (callable(value) or hasattr(value, "delay"))


def _are_errors(kinds: object) -> bool:
    if not isinstance(kinds, tuple):
        return False
    return all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)


def _wait(value: Duration, name: str) -> timedelta:
    duration = as_timedelta(value, name)
    _require(duration > timedelta(0), name, value, "must be above zero")
    return duration


def _require(holds: bool, name: str, value: object, rule: str) -> None:  # noqa: FBT001  the checked condition
    if not holds:
        raise UsageError(Problem(field=name, value=repr(value), rule=rule))
