"""Where jobs come from."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from datetime import UTC, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.codec import JsonCodec
from taskharbor.core.errors import (
    EnqueueRefused,
    IdempotencyConflict,
    InvalidRequest,
    PayloadNotEncodable,
    Problem,
    StoreUnavailable,
)
from taskharbor.core.facts import JobEnqueued
from taskharbor.core.ids import new_job_id
from taskharbor.core.model import new_job, payload_context
from taskharbor.core.request import check
from taskharbor.core.retry import RetryPolicy
from taskharbor.core.text import plain
from taskharbor.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.answers import Inserted
    from taskharbor.core.clock import Clock
    from taskharbor.core.codec import Codec
    from taskharbor.core.facts import Hook
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import NewJob
    from taskharbor.core.request import JobRequest
    from taskharbor.drivers.base import Inserter


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The job is stored. ``existed``: an earlier one holds the idempotency key, and this is its id."""

    id: JobId
    existed: bool


_LOG: Final = logging.getLogger(__name__)
_JSON: Final = JsonCodec()
_POLICY: Final = RetryPolicy()
_NO_DELAY: Final = timedelta(0)
_NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})


class Client:
    """Accepts jobs: validates, fills in defaults, encodes, and stores. What it returned is never lost.

    *driver* may also be a transaction of yours that a driver has joined: then a job is
    there when that commits, and hooks are told before.

    >>> from taskharbor import Client, JobRequest, MemoryDriver
    >>> client = Client(MemoryDriver())
    >>> request = JobRequest(type="email.send", payload={"to": "a@b.c"}, idempotency_key="welcome-7")
    >>> client.enqueue(request).existed, client.enqueue(request).existed
    (False, True)
    """

    def __init__(
        self,
        driver: Inserter,
        *,
        codec: Codec = _JSON,
        policy: RetryPolicy = _POLICY,
        clock: Clock | None = None,
        ids: Callable[[], JobId] = new_job_id,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self._driver = driver
        self._codec = codec
        self._policy = policy
        self._clock = clock or SystemClock()
        self._ids = ids
        self._hooks = tuple(hooks)

    def enqueue(self, request: JobRequest) -> Enqueued:
        """Store one job; when this returns, it is committed.

        Raises `InvalidRequest`, `IdempotencyConflict` or `StoreUnavailable`. After the last
        one (the store was tried twice, under the same id) nobody knows whether the job was
        stored: give the request an idempotency key, and it can be sent again without harm.
        """
        [answer] = self._insert([self._prepare(request, self._clock.now())])
        if isinstance(answer, IdempotencyConflict):
            raise answer
        return answer

    def enqueue_many(self, requests: Iterable[JobRequest]) -> list[Enqueued]:
        """Store jobs in one statement, and return what became of each, in order.

        A request that breaks a rule stops all of them, before anything is stored. Keys
        that belong to other jobs are refused one by one: `EnqueueRefused` then says
        which, and every other job is stored.
        """
        answers = self._insert(self._prepare_all(requests))
        if any(isinstance(answer, IdempotencyConflict) for answer in answers):
            raise EnqueueRefused(answers)
        return [answer for answer in answers if isinstance(answer, Enqueued)]

    def _insert(self, jobs: list[NewJob]) -> list[Enqueued | IdempotencyConflict]:
        answers = [
            answer if isinstance(answer, IdempotencyConflict) else Enqueued(answer.job_id, answer.existed)
            for answer in self._store(jobs)
        ]
        for job, answer in zip(jobs, answers, strict=True) if self._hooks else ():
            if isinstance(answer, Enqueued):
                self._tell(JobEnqueued(job_id=answer.id, type=job.type, queue=job.queue, existed=answer.existed))
        return answers

    def _store(self, jobs: list[NewJob]) -> list[Inserted | IdempotencyConflict]:
        """Insert, and once more where the reply was lost: under the same ids, so that nothing is doubled."""
        try:
            return self._driver.insert(jobs)
        except StoreUnavailable:
            return self._driver.insert(jobs, repeat=True)

    def _tell(self, fact: JobEnqueued) -> None:
        for hook in self._hooks:
            try:
                hook(fact)
            except Exception:  # noqa: BLE001  the job is stored: a hook's error must not look like a refusal
                _LOG.exception("a hook failed on %r", fact)

    def _prepare_all(self, requests: Iterable[JobRequest]) -> list[NewJob]:
        jobs = []
        now = self._clock.now()
        for place, request in enumerate(requests):
            try:
                jobs.append(self._prepare(request, now))
            except InvalidRequest as error:
                raise InvalidRequest([problem.within(f"jobs[{place}]") for problem in error.problems]) from error
        return jobs

    def _prepare(self, request: JobRequest, now: datetime) -> NewJob:
        check(request)
        job_id = self._ids()
        when = request.scheduled_for
        try:
            payload = self._codec.encode(request.payload, context=payload_context(job_id, request.type))
        except PayloadNotEncodable as error:
            raise InvalidRequest([_payload_problem(error)]) from error
        return new_job(
            id=job_id,
            type=plain(request.type),
            queue=plain(request.queue),
            payload=payload,
            created_at=now,
            max_attempts=int(request.max_attempts or self._policy.max_attempts),
            scheduled_for=None if when is None else when.astimezone(UTC),
            delay=request.delay or _NO_DELAY,
            timeout=request.timeout,
            priority=int(request.priority),
            idempotency_key=None if request.idempotency_key is None else plain(request.idempotency_key),
            digest=b"" if request.idempotency_key is None else self._digest(request),
            metadata=_plain_map(request.metadata) if request.metadata else _NO_METADATA,
        )

    def _digest(self, request: JobRequest) -> bytes:
        """Stand for what is to be done; when and how often may differ between a call and its repeat."""
        return hashlib.sha256(request.type.encode() + b"\0" + self._codec.digest(request.payload)).digest()


def _plain_map(metadata: Mapping[str, str]) -> dict[str, str]:
    return {plain(key): plain(value) for key, value in metadata.items()}


def _payload_problem(error: PayloadNotEncodable) -> Problem:
    place = f"payload{error.path.removeprefix('$')}"
    return Problem(field=place, value="not storable", rule=error.why)
