"""Where jobs come from."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.codec import CODEC_SETTING, JsonCodec, check_codec, codec_name
from taskharbor.core.errors import (
    EnqueueRefused,
    IdempotencyConflict,
    InvalidRequest,
    PayloadNotEncodable,
    Problem,
    StoreUnavailable,
)
from taskharbor.core.hooks import JobEnqueued
from taskharbor.core.ids import JobIdGenerator, new_job_id
from taskharbor.core.model import new_job, payload_context
from taskharbor.core.request import is_simple, validate
from taskharbor.core.results import Enqueued
from taskharbor.core.retry import RetryPolicy
from taskharbor.core.text import exact_str
from taskharbor.group_commit import AsyncGroupCommit, GroupCommit, KeyLocks, insert_or_repeat, keys_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from taskharbor.core.clocks import Clock
    from taskharbor.core.codec import Codec
    from taskharbor.core.hooks import Hook
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import NewJob
    from taskharbor.core.request import JobRequest
    from taskharbor.drivers.base import AsyncInserter, Inserter


_LOG: Final = logging.getLogger("taskharbor.client")
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
        self._json = codec if type(codec) is JsonCodec else None  # which ignores what it could bind a payload to
        self._attempts = int(policy.max_attempts)
        self._now: Callable[[], datetime] = partial(datetime.now, UTC) if clock is None else clock.now
        self._ids = ids
        self._hooks = tuple(hooks)
        self._group_commits: bool = getattr(driver, "group_commits", False)
        self._group_commit = GroupCommit(driver.insert)
        self._key_locks = KeyLocks()
        self._async_group_commit: AsyncGroupCommit | None = None
        self._is_checked = False

    def enqueue(self, request: JobRequest) -> Enqueued:
        """Store one job; when this returns, it is committed.

        Jobs that other threads enqueue meanwhile go out in the same statement, where the store
        gains by that. One with an idempotency key goes out alone: it may have to wait
        for a transaction that holds the key, and the others should not. Of several with the
        same key one at a time is in the store.

        Raises `InvalidRequest`, `IdempotencyConflict`, `CodecMismatch` or `StoreUnavailable`. After the last
        one (the store was tried twice, under the same id) nobody knows whether the job was
        stored: give the request an idempotency key, and it can be sent again without harm.
        If the store is known to be away it is raised within half a second, and its
        ``retry_in`` says when the store is tried next.
        """
        job = self._prepare(request, self._now(), self._ids())
        answer: Enqueued | IdempotencyConflict
        if job.idempotency_key is not None or not self._group_commits:
            [answer] = self._insert([job])
        else:
            if not self._is_checked:
                self._check_codec()
            group_commit = self._group_commit
            if group_commit.pid != os.getpid():  # callers that waited before a fork are in the other process
                group_commit = self._group_commit = GroupCommit(self._driver.insert)
            answer = group_commit.insert(job)
        if self._hooks:
            self._notify_hooks([job], [answer])
        if isinstance(answer, IdempotencyConflict):
            raise answer
        return answer

    async def aenqueue(self, request: JobRequest) -> Enqueued:
        """Store one job as `enqueue` does, from a coroutine, without holding up its event loop or taking a thread.

        Where it is cancelled, the job may be stored all the same, and hooks are told if it is.
        In a transaction that a driver has joined, and on the memory store, it does hold up the loop.
        """
        [answer] = await self._submit([self._prepare(request, self._now(), self._ids())])
        return _check_accepted(answer)

    async def aenqueue_in(self, joined: AsyncInserter, request: JobRequest) -> Enqueued:
        """Store one job in a transaction of an async connection, which a driver has joined."""
        job = self._prepare(request, self._now(), self._ids())
        if not self._is_checked:
            check_codec(await joined.remember(CODEC_SETTING, codec_name(self._codec)), self._codec)
        answers = await joined.insert([job])
        self._notify_hooks([job], answers)
        return _check_accepted(answers[0])

    def enqueue_many(self, requests: Iterable[JobRequest]) -> list[Enqueued]:
        """Store jobs in one statement, and return what became of each, in order.

        A request that breaks a rule stops all of them, before anything is stored. Keys
        that belong to other jobs are refused one by one: `EnqueueRefused` then says
        which, and every other job is stored.
        """
        jobs = self._prepare_all(requests)
        answers = self._insert(jobs)
        self._notify_hooks(jobs, answers)
        return _check_all_accepted(answers)

    async def aenqueue_many(self, requests: Iterable[JobRequest]) -> list[Enqueued]:
        """Store jobs as `enqueue_many` does, from a coroutine; they are prepared in its thread and stored from another.

        Cancelled, it leaves things as `aenqueue` does.
        """
        return _check_all_accepted(await self._submit(self._prepare_all(requests)))

    def prepare(self, request: JobRequest) -> NewJob:
        """Validate and encode one request without storing it, in any thread: `astore` stores what this returns.

        Raises `InvalidRequest`, as `enqueue` does.
        """
        return self._prepare(request, self._now(), self._ids())

    def prepare_many(self, requests: Iterable[JobRequest]) -> list[NewJob]:
        """Validate and encode requests as `prepare` does; errors are those of `enqueue_many`."""
        return self._prepare_all(requests)

    async def astore(self, jobs: list[NewJob]) -> list[Enqueued | IdempotencyConflict]:
        """Store prepared jobs in one statement, as `aenqueue_many` does; return what became of each, conflicts too."""
        return await self._submit(jobs)

    def encode(self, payload: object, job_id: JobId, *, job_type: str) -> bytes:
        """Return what the store keeps as the payload of that job: for one that is requeued with another payload.

        Raises `InvalidRequest` and `CodecMismatch`, as `enqueue` does.
        """
        if not self._is_checked:
            self._check_codec()
        return self._payload(payload, job_id, job_type)

    def _payload(self, payload: object, job_id: JobId, job_type: str) -> bytes:
        try:
            return self._codec.encode(payload, context=payload_context(job_id, job_type))
        except PayloadNotEncodable as error:
            raise InvalidRequest([_payload_problem(error)]) from error

    def close(self) -> None:
        """End the threads that `aenqueue` started, once what they were handed is stored; the driver stays open.

        Who does not call it loses nothing: they end by themselves a few seconds later, and
        come back when they are needed.
        """
        group_commit, self._async_group_commit = self._async_group_commit, None
        if group_commit is not None and group_commit.pid == os.getpid():
            group_commit.close()

    def _insert_checked(self, jobs: list[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Insert *jobs* after the codec was compared with the store's."""
        if not self._is_checked:
            self._check_codec()
        return self._driver.insert(jobs, repeat=repeat)

    def _insert(self, jobs: list[NewJob]) -> list[Enqueued | IdempotencyConflict]:
        """Insert *jobs* in this thread, while no other statement with one of their keys is in the store."""
        if not self._group_commits:
            return insert_or_repeat(self._insert_checked, jobs)
        with self._current_key_locks().hold(keys_of(jobs)):
            return insert_or_repeat(self._insert_checked, jobs)

    def _check_codec(self) -> None:
        try:
            agree_on_codec(self._driver, self._codec)
        except StoreUnavailable as error:
            if error.retry_in is not None:
                raise
            agree_on_codec(self._driver, self._codec)  # as an insert is repeated
        self._is_checked = not getattr(self._driver, "undoes_settings", False)

    def _current_key_locks(self) -> KeyLocks:
        if self._key_locks.pid != os.getpid():
            self._key_locks = KeyLocks()
        return self._key_locks

    async def _submit(self, jobs: list[NewJob]) -> list[Enqueued | IdempotencyConflict]:
        if not self._group_commits:
            inserted = insert_or_repeat(self._insert_checked, jobs)
            self._notify_hooks(jobs, inserted)
            return inserted
        group_commit = self._async_group_commit
        if group_commit is None or group_commit.pid != os.getpid():
            group_commit = self._async_group_commit = AsyncGroupCommit(self._insert_checked, self._current_key_locks())
        future = group_commit.submit(jobs)
        if not self._hooks:
            answers = await future
        else:
            # A canceled coroutine does not wait for its jobs; they are stored, and hooks are called.
            future.add_done_callback(lambda done: self._notify_hooks(jobs, done.result()))
            answers = await asyncio.shield(future)
        if isinstance(answers, Exception):
            raise answers
        return [*answers]

    def _notify_hooks(self, jobs: list[NewJob], answers: Sequence[Enqueued | IdempotencyConflict] | Exception) -> None:
        """Call each hook for each job that was stored."""
        if isinstance(answers, Exception):
            return
        events = [
            JobEnqueued(job_id=answer.id, type=job.type, queue=job.queue, existed=answer.existed)
            for job, answer in (zip(jobs, answers, strict=True) if self._hooks else ())
            if not isinstance(answer, IdempotencyConflict)
        ]
        for event, hook in product(events, self._hooks):
            try:
                hook(event)
            except Exception:  # noqa: BLE001  the job is stored: a hook's error must not look like a refusal
                _LOG.exception("hook failed on %r", event)

    def _prepare_all(self, requests: Iterable[JobRequest]) -> list[NewJob]:
        jobs: list[NewJob] = []
        now = self._now()
        asked = [*requests]
        try:
            for request, job_id in zip(asked, self._new_ids(len(asked)), strict=True):
                jobs.append(self._prepare(request, now, job_id))
        except InvalidRequest as error:
            raise InvalidRequest([problem.within(f"jobs[{len(jobs)}]") for problem in error.problems]) from error
        return jobs

    def _new_ids(self, count: int) -> list[JobId]:
        return self._ids.many(count) if isinstance(self._ids, JobIdGenerator) else [self._ids() for _ in range(count)]

    def _prepare(self, request: JobRequest, now: datetime, job_id: JobId) -> NewJob:
        is_usual = is_simple(request)
        if not is_usual:
            validate(request)
        json, key = self._json, request.idempotency_key
        if json is None or key is not None:
            payload, digest = self._encoded(request, job_id)
        else:
            try:
                payload, digest = json.encode(request.payload, context=b""), b""
            except PayloadNotEncodable as error:
                raise InvalidRequest([_payload_problem(error)]) from error
        attempts = self._attempts
        if is_usual:
            usual = (None, _NO_DELAY, None, 0, key, digest, _NO_METADATA)
            return new_job((job_id, request.type, request.queue, payload, now, attempts, *usual))
        when = request.scheduled_for
        return new_job(
            (
                job_id,
                exact_str(request.type),
                exact_str(request.queue),
                payload,
                now,
                int(request.max_attempts or attempts),
                None if when is None else when.astimezone(UTC),
                request.delay or _NO_DELAY,
                request.timeout,
                int(request.priority),
                None if key is None else exact_str(key),
                digest,
                _plain_map(request.metadata),
            )
        )

    def _encoded(self, request: JobRequest, job_id: JobId) -> tuple[bytes, bytes]:
        """Return the payload; for a job with a key also a digest of payload and type, which a repeat must match."""
        json, key = self._json, request.idempotency_key
        try:
            if json is None:
                payload = self._payload(request.payload, job_id, request.type)
                digest = b"" if key is None else self._codec.digest(request.payload)
            else:
                payload, digest = json.encode_with_digest(request.payload)
        except PayloadNotEncodable as error:
            raise InvalidRequest([_payload_problem(error)]) from error
        return payload, b"" if key is None else hashlib.sha256(request.type.encode() + b"\0" + digest).digest()


def agree_on_codec(store: Inserter, codec: Codec) -> None:
    """Raise `CodecMismatch` if the payloads in *store* are written with another codec; record ours if it has none."""
    check_codec(store.remember(CODEC_SETTING, codec_name(codec)), codec)


def _check_accepted(answer: Enqueued | IdempotencyConflict) -> Enqueued:
    if isinstance(answer, IdempotencyConflict):
        raise answer
    return answer


def _check_all_accepted(answers: list[Enqueued | IdempotencyConflict]) -> list[Enqueued]:
    accepted = [answer for answer in answers if isinstance(answer, Enqueued)]
    if len(accepted) < len(answers):
        raise EnqueueRefused(answers)
    return accepted


def _plain_map(metadata: Mapping[str, str]) -> dict[str, str]:
    return {exact_str(key): exact_str(value) for key, value in metadata.items()}


def _payload_problem(error: PayloadNotEncodable) -> Problem:
    place = f"payload{error.path.removeprefix('$')}"
    return Problem(field=place, value="not storable", rule=error.reason)
