"""Everything TaskHarbor raises on purpose.

TaskHarborError
├── UsageError                   the caller is wrong; trying again will not help
│   ├── InvalidRequest           fields of a request break a rule; names each field, value and limit
│   ├── IdempotencyConflict      the key is held by a job with another body
│   ├── IllegalTransition        the job's state does not allow the move
│   ├── PayloadNotEncodable      a value has no JSON form; names its path
│   │   └── PayloadTooLarge
│   ├── CodecMismatch            the store's payloads are written with another codec
│   ├── ApiKeyRequired           others could reach the API, and no key would keep them out
│   └── PayloadNotDecodable      the stored bytes are not what this codec wrote
│       └── CallNotReadable      the stored call does not fit the task, or the result what it returns
├── AddressUnavailable           the API's address is taken, or not ours
├── EnqueueRefused               some jobs of a batch were refused; says which, the others are stored
├── JobNotFound
├── JobFailed                    somebody waited for its result, and it has none
├── ResultTimeout                somebody waited for its result, and it did not end in time
├── JobTimedOut                  the handler ran longer than the job may
├── LeaseLost                    another worker owns the job, or nobody does
│   ├── JobNotInflight
│   ├── LeaseExpired
│   └── LeaseMismatch
├── OutcomeNotStorable           the store cannot hold the data of an outcome
├── ScheduleNotFound
├── SchemaOutOfDate              the store's tables and this code do not fit; run the migrations
└── StoreUnavailable             the store is out of reach; trying again may help

`taskharbor.settings` and `taskharbor.drivers.connect` add usage errors of their own, about URLs.

Drivers *return* the errors that concern one item of a batch, in the place of that
item's answer, so that one refusal never hides what happened to its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.core.ids import JobId


class TaskHarborError(Exception):
    """The root of everything raised on purpose.

    Facts stay in ``args``, so that an error survives copying between processes;
    the wording is made from them in ``__str__``.
    """


class UsageError(TaskHarborError):
    """The caller is wrong; trying again will not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One broken rule: which field, what it held, and what is allowed."""

    field: str
    value: str
    rule: str

    def within(self, place: str) -> Problem:
        """Return the same problem, found in *place* of something larger."""
        return Problem(field=f"{place}.{self.field}", value=self.value, rule=self.rule)

    def __str__(self) -> str:
        return f"{self.field} is {self.value}: {self.rule}"


class InvalidRequest(UsageError):
    """One or more fields of a request break a rule. Nothing was stored."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "; ".join(map(str, self.problems))


class IdempotencyConflict(UsageError):
    """The idempotency key is held by a job with another type or payload."""

    def __init__(self, queue: str, key: str, holder: JobId) -> None:
        super().__init__(queue, key, holder)
        self.queue, self.key, self.holder = queue, key, holder

    def __str__(self) -> str:
        return (
            f"idempotency key {self.key!r} of queue {self.queue!r} belongs to job {self.holder}, "
            "which has another type or payload: use another key, or send the same job"
        )


class IllegalTransition(UsageError):
    """The job's state does not allow the move. Nothing changed."""

    def __init__(self, job_id: JobId, status: str, event: str) -> None:
        super().__init__(job_id, status, event)
        self.job_id, self.status, self.event = job_id, status, event

    def __str__(self) -> str:
        return f"cannot {self.event} job {self.job_id}: it is {self.status}"


class PayloadNotEncodable(UsageError):
    """A value inside a payload or result has no form that can be stored."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class PayloadTooLarge(PayloadNotEncodable):
    """The encoded payload or result is over the limit."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            "$", f"{size:,} bytes encoded, the limit is {limit:,}: store it elsewhere and pass a reference"
        )
        self.args = (size, limit)
        self.size, self.limit = size, limit


class PayloadNotDecodable(UsageError):
    """The stored bytes are not what this codec wrote."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot decode the stored bytes: {self.reason}"


class CallNotReadable(PayloadNotDecodable):
    """What is stored does not fit the task: it was written by another version of it, or by hand."""

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(reason)
        self.args = (task, reason)
        self.task = task

    def __str__(self) -> str:
        return f"what is stored does not fit task {self.task!r}: {self.reason}"


class CodecMismatch(UsageError):
    """The payloads in the store are written with another codec. Nothing was stored."""

    def __init__(self, recorded: str, ours: str) -> None:
        super().__init__(recorded, ours)
        self.recorded, self.ours = recorded, ours

    def __str__(self) -> str:
        return (
            f"the payloads in this store are written with the codec {self.recorded!r}, not with {self.ours!r}: "
            "name the app that has that codec, or in Python pass codec=…; "
            "'taskharbor codec --help' says how to change the codec of a store"
        )


class ApiKeyRequired(UsageError):
    """The API's address can be reached from outside, and the store has no key that would keep anybody out."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return (
            f"refused to listen on {self.host!r}: others can reach it, and this store has no API key; "
            "make one with 'taskharbor keys create', or listen on 127.0.0.1"
        )


class AddressUnavailable(TaskHarborError):
    """The API cannot have this address."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(host, port, reason)
        self.host, self.port, self.reason = host, port, reason

    def __str__(self) -> str:
        return f"cannot listen on {self.host!r}, port {self.port}: {self.reason}; choose another --host or --port"


class EnqueueRefused(TaskHarborError):
    """Some jobs of a batch were refused; every other job of it is stored.

    ``answers`` has one entry for each request, in order: what was stored, or the
    error that says why not.
    """

    def __init__(self, answers: Sequence[object]) -> None:
        super().__init__(answers)
        self.answers = tuple(answers)

    @property
    def refused(self) -> dict[int, TaskHarborError]:
        """The refused requests, by their place in the batch."""
        return {n: answer for n, answer in enumerate(self.answers) if isinstance(answer, TaskHarborError)}

    def __str__(self) -> str:
        place, first = next(iter(self.refused.items()))
        stored = len(self.answers) - len(self.refused)
        return f"{len(self.refused)} of {len(self.answers)} jobs refused, {stored} stored; job {place}: {first}"


class JobNotFound(TaskHarborError):
    """There is no job with this id: it never was, or retention removed it."""

    def __init__(self, job_id: JobId) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"there is no job {self.job_id}"


class JobFailed(TaskHarborError):
    """The job ended without a result: it is a dead letter, or it was canceled."""

    def __init__(self, job_id: JobId, status: str, error: str) -> None:
        super().__init__(job_id, status, error)
        self.job_id, self.status, self.error = job_id, status, error

    def __str__(self) -> str:
        return f"job {self.job_id} is {self.status}" + (f": {self.error}" if self.error else "")


class ResultTimeout(TaskHarborError):
    """The job did not end in time. It goes on."""

    def __init__(self, job_id: JobId, timeout: timedelta) -> None:
        super().__init__(job_id, timeout)
        self.job_id, self.timeout = job_id, timeout

    def __str__(self) -> str:
        return f"job {self.job_id} did not end within {self.timeout}; it goes on"


class JobTimedOut(TaskHarborError):
    """The handler ran longer than the job's timeout."""

    def __init__(self, job_id: JobId, timeout: timedelta) -> None:
        super().__init__(job_id, timeout)
        self.job_id, self.timeout = job_id, timeout

    def __str__(self) -> str:
        return f"job {self.job_id} ran longer than its timeout of {self.timeout}"


class LeaseLost(TaskHarborError):
    """The lease no longer gives the right to run the job. Nothing changed."""

    def __init__(self, job_id: JobId) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"the lease on job {self.job_id} is lost"


class JobNotInflight(LeaseLost):
    """Nobody is running the job."""

    def __str__(self) -> str:
        return f"job {self.job_id} is not being processed"


class LeaseMismatch(LeaseLost):
    """Another lease holds the job."""

    def __str__(self) -> str:
        return f"job {self.job_id} is leased under another token"


class LeaseExpired(LeaseLost):
    """The lease ended before the call."""

    def __str__(self) -> str:
        return f"the lease on job {self.job_id} is over"


class OutcomeNotStorable(TaskHarborError):
    """The store cannot hold the data of this outcome, now or later. Nothing changed; the lease still holds."""

    def __init__(self, job_id: JobId, reason: str) -> None:
        super().__init__(job_id, reason)
        self.job_id, self.reason = job_id, reason

    def __str__(self) -> str:
        return f"the outcome of job {self.job_id} cannot be stored: {self.reason}"


class ScheduleNotFound(TaskHarborError):
    """There is no schedule of this name; *near* is one that was perhaps meant."""

    def __init__(self, name: str, near: str | None = None) -> None:
        super().__init__(name, near)
        self.name, self.near = name, near

    def __str__(self) -> str:
        return f"there is no schedule {self.name!r}" + (f"; did you mean {self.near!r}?" if self.near else "")


class SchemaOutOfDate(TaskHarborError):
    """The store's schema does not fit this code."""

    def __init__(self, found: str, wanted: str, remedy: str) -> None:
        super().__init__(found, wanted, remedy)
        self.found, self.wanted, self.remedy = found, wanted, remedy

    def __str__(self) -> str:
        return f"the store's schema is {self.found}, this code needs {self.wanted}: {self.remedy}"


class StoreUnavailable(TaskHarborError):
    """The store is out of reach. Whether the last write took effect may be unknown.

    *retry_in* is set if the store is known to be away: this call did not wait for it, and the
    next one fails as fast until then. Otherwise it is None, and a repeat may succeed at once.
    """

    def __init__(self, reason: str, *, retry_in: timedelta | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_in = retry_in

    def __str__(self) -> str:
        wait = "" if self.retry_in is None else f"; try again in {self.retry_in.total_seconds():.2g} s"
        return f"the store is out of reach: {self.reason}{wait}"
