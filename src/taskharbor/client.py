"""The client: validates job requests, encodes their payloads, and inserts the jobs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from taskharbor.core.codec import CODEC_SETTING, JsonCodec, check_codec, codec_name, encode_with
from taskharbor.core.durations import ZERO, as_timedelta
from taskharbor.core.errors import (
    EnqueueRefused,
    IdempotencyConflict,
    InvalidRequest,
    PayloadNotEncodable,
    Problem,
    StoreUnavailable,
)
from taskharbor.core.flat_calls import encode_calls
from taskharbor.core.hooks import JobsEnqueued
from taskharbor.core.ids import JobIdGenerator, new_job_id
from taskharbor.core.job_batch import JobBatch, distinct, jobs_like
from taskharbor.core.model import new_job, payload_context
from taskharbor.core.request import MAX_ATTEMPTS, is_simple, validate, validate_attempts
from taskharbor.core.results import Enqueued
from taskharbor.core.text import exact_str
from taskharbor.group_commit import AsyncGroupCommit, GroupCommit, KeyLocks, insert_or_repeat, keys_of
from taskharbor.observability.hook_caller import HookCaller
from taskharbor.observability.tracing import spans_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from taskharbor.core.clocks import Clock
    from taskharbor.core.codec import Codec
    from taskharbor.core.hooks import Hook
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import NewJob
    from taskharbor.core.request import JobRequest, TypedCall
    from taskharbor.drivers.base import AsyncInserter, Inserter
    from taskharbor.observability.spans import Spans
    from taskharbor.observability.tracing import TracingOption


_LOG: Final = logging.getLogger("taskharbor.client")
_JSON: Final = JsonCodec()


class Client:
    """Enqueues jobs of any type, without a `Task`. When a call returns, its jobs are committed and cannot be lost.

    - *driver*: the store. It may also be a joined transaction, which ``driver.join(connection)`` returns. Its jobs
      are committed when you commit that transaction; hooks are called before.
    - *codec*: how payloads are encoded. Every client and worker of a store must use the same codec.
    - *max_attempts*: how many attempts a job has if its request does not say. Workers decide on the delays between.
    - *clock*: the source of ``created_at``; by default the clock of this machine.
    - *ids*: returns a new job id at each call; by default a UUID of version 7.
    - *hooks*: callables that receive a `JobsEnqueued` event for the jobs that a call stored. An error of one is logged.
    - *tracing*: whether each call makes a span, with the global tracer provider of OpenTelemetry; or a provider.

    A client may be used by any number of threads and event loops at once.

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
        max_attempts: int = MAX_ATTEMPTS,
        clock: Clock | None = None,
        ids: Callable[[], JobId] = new_job_id,
        hooks: Sequence[Hook] = (),
        tracing: TracingOption = False,
    ) -> None:
        self._driver = driver
        self.spans = spans_for(tracing, driver)
        self._codec = codec
        self._json = codec if type(codec) is JsonCodec else None  # it ignores the context, so none is made
        validate_attempts(max_attempts, field="max_attempts")
        self._attempts = int(max_attempts)
        self._now: Callable[[], datetime] = partial(datetime.now, UTC) if clock is None else clock.now
        self._ids = ids
        self.hooks: Final = tuple(hooks)
        self.call_hooks: Final = HookCaller(hooks, _LOG, catches=Exception)
        self._call_hooks = self.call_hooks if hooks else None
        self._group_commits: bool = getattr(driver, "group_commits", False)
        self._group_commit = GroupCommit(driver.insert)
        self._key_locks = KeyLocks()
        self._async_group_commit: AsyncGroupCommit | None = None
        self._is_checked = False

    def enqueue(self, request: JobRequest) -> Enqueued:
        """Store one job, and return after it is committed.

        If its idempotency key belongs to an earlier job with the same type and payload, no job is stored: the result
        has the id of the earlier job, and ``existed`` is true.

        On PostgreSQL and SQLite, jobs that several threads enqueue at the same time are inserted in one statement
        (group commit). A job with an idempotency key has a statement of its own, because it may have to wait for
        a transaction that holds the key. Jobs with the same key are inserted one after another.

        It raises:

        - `InvalidRequest`: a field breaks a rule, or the payload cannot be encoded. Nothing is stored.
        - `IdempotencyConflict`: the key belongs to a job with another type or payload. Nothing is stored.
        - `CodecMismatch`: the store's payloads are written with another codec. Nothing is stored.
        - `StoreUnavailable`: the insert failed, and so did a repeat with the same id. The job may or may not be
          stored. If the request has an idempotency key, it can safely be sent again. If the store is known to be
          unavailable, the error is raised within half a second, and its ``retry_in`` is the time until the next try.
        """
        job = self._prepare(request, self._now(), self._ids())
        answer: Enqueued | IdempotencyConflict
        if self.spans is not None:
            [answer] = self._insert_traced(self.spans, [job])
        elif job.idempotency_key is not None or not self._group_commits:
            [answer] = self._insert([job])
        else:
            answer = self._group_insert(job)
        if self._call_hooks:
            self._notify_hooks([job], [answer])
        if isinstance(answer, IdempotencyConflict):
            raise answer
        return answer

    async def aenqueue(self, request: JobRequest) -> Enqueued:
        """Store one job as `enqueue` does, without blocking the event loop.

        All coroutines share one inserting thread, so that no thread is needed per call. If the coroutine is canceled,
        the job may still be stored; hooks are called if it is. In a joined transaction and on the memory store
        the event loop is blocked.
        """
        [answer] = await self._submit([self._prepare(request, self._now(), self._ids())])
        return _check_accepted(answer)

    async def aenqueue_in(self, joined: AsyncInserter, request: JobRequest) -> Enqueued:
        """Store one job in *joined*, a transaction of an async connection that a driver has joined.

        The job exists after you commit. Hooks are called before. Raises the errors of `enqueue`.
        """
        job = self._prepare(request, self._now(), self._ids())
        if not self._is_checked:
            check_codec(await joined.remember(CODEC_SETTING, codec_name(self._codec)), self._codec)
        with nullcontext() if self.spans is None else self.spans.enqueue([job]) as span:
            answers = await joined.insert([job])
            if span is not None:
                span.stored(answers)
        self._notify_hooks([job], answers)
        return _check_accepted(answers[0])

    def enqueue_many(self, requests: Iterable[JobRequest]) -> list[Enqueued]:
        """Store jobs in one statement, and return their results in the order of *requests*.

        If any request is invalid, `InvalidRequest` is raised and nothing is stored; its problems name the request, as
        in ``jobs[2].queue``. If idempotency keys belong to other jobs, `EnqueueRefused` is raised: its ``refused``
        has those requests, and all other jobs are stored. Also raises `CodecMismatch` and `StoreUnavailable`, as
        `enqueue` does.
        """
        jobs = self._prepare_all(requests)
        answers = self._insert(jobs) if self.spans is None else self._insert_traced(self.spans, jobs)
        self._notify_hooks(jobs, answers)
        return _check_all_accepted(answers)

    def enqueue_calls(self, calls: Sequence[TypedCall]) -> list[Enqueued]:
        """Store the jobs of *calls* as `enqueue_many` stores those of their requests."""
        jobs = self._prepare_calls(calls)
        answers = self._insert(jobs) if self.spans is None else self._insert_traced(self.spans, jobs)
        self._notify_hooks(jobs, answers)
        return _check_all_accepted(answers)

    async def aenqueue_many(self, requests: Iterable[JobRequest]) -> list[Enqueued]:
        """Store jobs as `enqueue_many` does, without blocking the event loop.

        Requests are validated and encoded in the calling thread; another thread inserts the jobs. If the coroutine is
        canceled, the jobs may still be stored.
        """
        return _check_all_accepted(await self._submit(self._prepare_all(requests)))

    async def aenqueue_calls(self, calls: Sequence[TypedCall]) -> list[Enqueued]:
        """Store the jobs of *calls* as `aenqueue_many` stores those of their requests."""
        return _check_all_accepted(await self._submit(self._prepare_calls(calls)))

    def prepare(self, request: JobRequest) -> NewJob:
        """Validate and encode one request, and return the job for `astore`. Nothing is stored.

        It may be called in any thread. Raises `InvalidRequest`.
        """
        return self._prepare(request, self._now(), self._ids())

    def prepare_many(self, requests: Iterable[JobRequest]) -> list[NewJob]:
        """Validate and encode requests as `prepare` does. The problems of `InvalidRequest` name the request."""
        return self._prepare_all(requests)

    async def astore(self, jobs: list[NewJob]) -> list[Enqueued | IdempotencyConflict]:
        """Store prepared jobs in one statement, and return a result for each, in order.

        A job whose idempotency key belongs to another job has an `IdempotencyConflict` as its result; it is
        returned, not raised. Raises `CodecMismatch` and `StoreUnavailable`.
        """
        return await self._submit(jobs)

    def encode(self, payload: object, job_id: JobId, *, job_type: str) -> bytes:
        """Return *payload* as the store keeps it for that job. It is used to requeue a job with another payload.

        Raises `InvalidRequest`, `CodecMismatch` and `StoreUnavailable`, as `enqueue` does.
        """
        if not self._is_checked:
            self._check_codec()
        return self._encode_payload(payload, job_id, job_type)

    def _encode_payload(self, payload: object, job_id: JobId, job_type: str) -> bytes:
        try:
            return encode_with(self._codec, payload, context=payload_context(job_id, job_type))
        except PayloadNotEncodable as error:
            raise InvalidRequest([_payload_problem(error)]) from error

    def close(self) -> None:
        """Store all jobs of pending `aenqueue` calls, and end the threads that insert them. The driver stays open.

        Calling it is optional: idle threads end after a few seconds, and are started again when they are needed.
        """
        group_commit, self._async_group_commit = self._async_group_commit, None
        if group_commit is not None and group_commit.pid == os.getpid():
            group_commit.close()

    def _insert_checked(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Insert *jobs*; before the first insert, compare the codec with the store's."""
        if not self._is_checked:
            self._check_codec()
        return self._driver.insert(jobs, repeat=repeat)

    def _group_insert(self, job: NewJob) -> Enqueued | IdempotencyConflict:
        """Insert a job without a key, together with those of other threads."""
        if not self._is_checked:
            self._check_codec()
        group_commit = self._group_commit
        if group_commit.pid != os.getpid():  # after a fork its waiters exist only in the parent
            group_commit = self._group_commit = GroupCommit(self._driver.insert)
        return group_commit.insert(job)

    def _insert_traced(self, spans: Spans, jobs: Sequence[NewJob]) -> list[Enqueued | IdempotencyConflict]:
        """Insert *jobs* inside a span, whose context they get."""
        is_grouped = self._group_commits and len(jobs) == 1 and jobs[0].idempotency_key is None
        with spans.enqueue(jobs) as span:
            answers = [self._group_insert(jobs[0])] if is_grouped else self._insert(jobs)
            span.stored(answers)
        return answers

    def _insert(self, jobs: Sequence[NewJob]) -> list[Enqueued | IdempotencyConflict]:
        """Insert *jobs* in this thread, when no other statement with one of their keys is in the store."""
        if not self._group_commits:
            return insert_or_repeat(self._insert_checked, jobs)
        with self._current_key_locks().hold(keys_of(distinct(jobs))):
            return insert_or_repeat(self._insert_checked, jobs)

    def _check_codec(self) -> None:
        try:
            agree_on_codec(self._driver, self._codec)
        except StoreUnavailable as error:
            if error.retry_in is not None:
                raise
            agree_on_codec(self._driver, self._codec)  # repeated once, as an insert is
        self._is_checked = not getattr(self._driver, "undoes_settings", False)

    def _current_key_locks(self) -> KeyLocks:
        if self._key_locks.pid != os.getpid():
            self._key_locks = KeyLocks()
        return self._key_locks

    async def _submit(self, jobs: Sequence[NewJob], *, is_traced: bool = False) -> list[Enqueued | IdempotencyConflict]:
        if self.spans is not None and not is_traced:
            with self.spans.enqueue(jobs) as span:
                stored = await self._submit(jobs, is_traced=True)
                span.stored(stored)
            return stored
        if not self._group_commits:
            inserted = insert_or_repeat(self._insert_checked, jobs)
            self._notify_hooks(jobs, inserted)
            return inserted
        group_commit = self._async_group_commit
        if group_commit is None or group_commit.pid != os.getpid():
            group_commit = self._async_group_commit = AsyncGroupCommit(self._insert_checked, self._current_key_locks())
        future = group_commit.submit(jobs)
        if not self._call_hooks:
            answers = await future
        else:
            # If the coroutine is canceled, its jobs are stored and hooks are called nevertheless.
            future.add_done_callback(lambda done: self._notify_hooks(jobs, done.result()))
            answers = await asyncio.shield(future)
        if isinstance(answers, Exception):
            raise answers
        return [*answers]

    def _notify_hooks(
        self, jobs: Sequence[NewJob], answers: Sequence[Enqueued | IdempotencyConflict] | Exception
    ) -> None:
        """Call the hooks with the accepted jobs."""
        if isinstance(answers, Exception) or not self._call_hooks:
            return
        pairs = zip(jobs, answers, strict=True)
        accepted = [(job, answer) for job, answer in pairs if not isinstance(answer, IdempotencyConflict)]
        if accepted:
            stored, results = zip(*accepted, strict=True)
            self._call_hooks(JobsEnqueued(jobs=stored, results=results))

    def _prepare_all(self, requests: Iterable[JobRequest]) -> list[NewJob]:
        jobs: list[NewJob] = []
        now = self._now()
        all_requests = [*requests]
        try:
            for request, job_id in zip(all_requests, self._new_ids(len(all_requests)), strict=True):
                jobs.append(self._prepare(request, now, job_id))
        except InvalidRequest as error:
            raise InvalidRequest([problem.within(f"jobs[{len(jobs)}]") for problem in error.problems]) from error
        return jobs

    def _prepare_calls(self, calls: Sequence[TypedCall]) -> Sequence[NewJob]:
        """Do what `_prepare_all` does, in a fifth of the time if all *calls* are flat, valid and of one task."""
        json = self._json
        payloads = None if json is None else encode_calls(calls)
        if json is None or payloads is None or max(map(len, payloads), default=0) > json.limit:
            return self._prepare_all(call.request for call in calls)  # it also raises what is wrong with a call
        ids, now = self._new_ids(len(calls)), self._now()
        tasks = dict(zip(map(attrgetter("task"), calls), calls, strict=True))
        models = {task: self._prepare(call.request, now, ids[0]) for task, call in tasks.items()}
        if len(models) == 1 and self.spans is None:  # a span would change the metadata of each job
            [model] = models.values()
            return JobBatch(model, ids, payloads)
        return jobs_like([models[call.task] for call in calls], ids, payloads)

    def _new_ids(self, count: int) -> list[JobId]:
        return self._ids.many(count) if isinstance(self._ids, JobIdGenerator) else [self._ids() for _ in range(count)]

    def _prepare(self, request: JobRequest, now: datetime, job_id: JobId) -> NewJob:
        has_defaults = is_simple(request)
        if not has_defaults:
            validate(request)
        json, key = self._json, request.idempotency_key
        if json is None or key is not None:
            payload, digest = self._encode_with_digest(request, job_id)
        else:
            try:
                payload, digest = json.encode(request.payload, context=b""), b""
            except PayloadNotEncodable as error:
                raise InvalidRequest([_payload_problem(error)]) from error
        if has_defaults:
            return new_job(
                id=job_id,
                type=request.type,
                queue=request.queue,
                payload=payload,
                created_at=now,
                max_attempts=self._attempts,
                idempotency_key=key,
                digest=digest,
            )
        return new_job(
            id=job_id,
            type=exact_str(request.type),
            queue=exact_str(request.queue),
            payload=payload,
            created_at=now,
            max_attempts=int(request.max_attempts or self._attempts),
            scheduled_for=None if request.scheduled_for is None else request.scheduled_for.astimezone(UTC),
            delay=ZERO if request.delay is None else as_timedelta(request.delay, "delay"),
            timeout=None if request.timeout is None else as_timedelta(request.timeout, "timeout"),
            priority=int(request.priority),
            idempotency_key=None if key is None else exact_str(key),
            digest=digest,
            metadata=_exact_strings(request.metadata),
        )

    def _encode_with_digest(self, request: JobRequest, job_id: JobId) -> tuple[bytes, bytes]:
        """Return the encoded payload and, for a job with a key, the digest of type and payload."""
        json, key = self._json, request.idempotency_key
        try:
            if json is None:
                payload = self._encode_payload(request.payload, job_id, request.type)
                digest = b"" if key is None else self._codec.digest(request.payload)
            else:
                payload, digest = json.encode_with_digest(request.payload)
        except PayloadNotEncodable as error:
            raise InvalidRequest([_payload_problem(error)]) from error
        return payload, b"" if key is None else hashlib.sha256(request.type.encode() + b"\0" + digest).digest()


def agree_on_codec(store: Inserter, codec: Codec) -> None:
    """Record *codec* in *store*. Raise `CodecMismatch` if another codec is recorded there."""
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


def _exact_strings(metadata: Mapping[str, str]) -> dict[str, str]:
    return {exact_str(key): exact_str(value) for key, value in metadata.items()}


def _payload_problem(error: PayloadNotEncodable) -> Problem:
    field = f"payload{error.path.removeprefix('$')}"
    return Problem(field=field, value="not storable", rule=error.reason)
