"""Retry policies: how often and after which delays a failed job is retried."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.request import validate_attempts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taskharbor.core.ids import JobId

DEFAULT_MAX_ATTEMPTS: Final = 20


class Backoff(Protocol):
    """The delay after an attempt; None to give up.

    *chance* is a number in [0, 1) for jitter. It is equal for the same job and attempt, so that a
    decision can be repeated, and differs between jobs.
    """

    def delay(self, attempt: int, *, chance: float) -> timedelta | None: ...


@dataclass(frozen=True, slots=True)
class Exponential:
    """Wait *base* after the first attempt and *factor* times longer after each further one, up to *cap*.

    *jitter* is the fraction of a delay that is subtracted at random, so that jobs that failed
    together are not retried together.

    >>> [Exponential(jitter=0).delay(n, chance=0) // timedelta(seconds=1) for n in (1, 2, 3, 10**6)]
    [5, 10, 20, 3600]
    """

    base: timedelta = timedelta(seconds=5)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=1)
    jitter: float = 0.25

    def __post_init__(self) -> None:
        _require_duration("base", self.base)
        _require_duration("cap", self.cap)
        _require(self.base <= self.cap, "base", self.base, "above zero and at most cap")
        _require(1 <= self.factor < math.inf, "factor", self.factor, "at least 1")
        _require(0 <= self.jitter < 1, "jitter", self.jitter, "at least 0 and below 1")

    def delay(self, attempt: int, *, chance: float) -> timedelta:
        # Compare exponents first: 2.0 ** 1024 overflows.
        steps = max(attempt, 1) - 1
        reaches_cap = self.factor > 1 and steps >= math.log(self.cap / self.base, self.factor)
        full = self.cap if reaches_cap else self.base * self.factor**steps
        return max(min(full, self.cap) * (1 - self.jitter * chance), timedelta.resolution)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Wait the same time after every attempt."""

    wait: timedelta

    def __post_init__(self) -> None:
        _require_duration("wait", self.wait)

    def delay(self, attempt: int, *, chance: float) -> timedelta:  # noqa: ARG002  part of the protocol
        return self.wait


@dataclass(frozen=True, slots=True)
class Never:
    """Give up at the first failure."""

    def delay(self, attempt: int, *, chance: float) -> None:  # noqa: ARG002  part of the protocol
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and after which delays a failed job is retried.

    *backoff* is one of `Exponential`, `Fixed` and `Never`, or a function from the attempt number to
    a delay (None to give up). *rules* maps error classes to their own backoff. Errors of the classes
    in *give_up_on* are not retried. The class closest to the error's own in its MRO decides.

    >>> RetryPolicy(rules={TimeoutError: Fixed(timedelta(seconds=1))}, give_up_on=(ValueError,), max_attempts=5)
    ... # doctest: +ELLIPSIS
    RetryPolicy(...)
    """

    backoff: Backoff | Callable[[int], timedelta | None] = field(default_factory=Exponential)
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    rules: Mapping[type[BaseException], Backoff | Callable[[int], timedelta | None]] = field(default_factory=dict)
    give_up_on: tuple[type[BaseException], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        validate_attempts(self.max_attempts, field="max_attempts")
        for backoff in (self.backoff, *self.rules.values()):
            _require(
                _is_backoff(backoff), "backoff", backoff, "such as Exponential(), Fixed(…), Never(), or a function"
            )
        for kinds in (self.give_up_on, tuple(self.rules)):
            _require(_are_errors(kinds), "give_up_on", kinds, "a tuple of exception classes, as the keys of rules are")

    def delay(self, job_id: JobId, attempt: int, error: BaseException) -> timedelta | None:
        """Return how long to wait after *attempt* of this job failed with *error*; None to give up."""
        backoff = self._backoff_for(error)
        if callable(backoff):
            return backoff(attempt)
        return backoff.delay(attempt, chance=_chance(self.seed, job_id, attempt))

    def _backoff_for(self, error: BaseException) -> Backoff | Callable[[int], timedelta | None]:
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


def _require_duration(name: str, value: object) -> None:
    is_duration = isinstance(value, timedelta) and value > timedelta(0)
    _require(is_duration, name, value, "above zero, as a timedelta")


def _require(holds: bool, name: str, value: object, rule: str) -> None:  # noqa: FBT001  the checked condition
    if not holds:
        raise UsageError(Problem(field=name, value=repr(value), rule=rule))
