"""The exceptions that TaskHarbor raises.

TaskHarborError
├── UsageError                   incorrect use; a retry will not help
│   ├── InvalidRequest           fields of a request are invalid; names each field, value and limit
│   │   └── UnknownType          no task of the app has the type of the job
│   ├── IdempotencyConflict      the key is held by a job with another type or payload
│   ├── OperationConflict        the key was used for another bulk operation
│   ├── IllegalTransition        the job's status does not allow the transition
│   ├── PayloadNotEncodable      a value has no JSON form; names its path
│   │   └── PayloadTooLarge
│   ├── CodecMismatch            the store's payloads were written with another codec
│   ├── ApiKeyRequired           the API's address is reachable from outside, and the store has no key
│   └── PayloadNotDecodable      this codec did not write the stored bytes
│       └── CallNotReadable      the stored call or result does not match the task
├── AddressUnavailable           a server cannot bind its address
├── EnqueueRefused               some jobs of a batch were refused; the others are stored
├── JobNotFound
├── JobFailed                    the job ended without a result
├── ResultTimeout                the job did not finish before the caller's timeout
├── JobTimedOut                  the handler ran longer than the job's timeout
├── LeaseLost                    the lease no longer holds the job
│   ├── JobNotInflight
│   ├── LeaseExpired
│   └── LeaseMismatch
├── OperationNotFound
├── OutcomeNotStorable           the store cannot hold the data of an outcome
├── ScheduleNotFound
├── SchemaOutOfDate              the store's schema does not match this code; run the migrations
└── StoreUnavailable             the store cannot be reached; a retry may help
    └── StoreRefused             it refuses this user, database or file; a retry will not help

`taskharbor.settings` and `taskharbor.drivers.connect` define further usage errors, about URLs;
`taskharbor.task_registry` and `taskharbor.core.typed_values`, about the definition of tasks.

Drivers *return* an error that concerns one item of a batch, in the position of that item's
result, so that one refusal does not hide the results of the other items.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from taskharbor.core.text import duration_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from uuid import UUID

    from taskharbor.core.ids import JobId


_MAX_LISTED: Final = 5


class TaskHarborError(Exception):
    """Base class of all TaskHarbor exceptions.

    ``args`` holds the values and ``__str__`` builds the message from them, so that an error can be pickled.
    """


class UsageError(TaskHarborError):
    """Incorrect use of the API. A retry will not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One invalid field: its name, its value and the rule that it breaks."""

    field: str
    value: str
    rule: str

    def within(self, place: str) -> Problem:
        """Return the same problem with *place* in front of the field name."""
        return Problem(field=f"{place}.{self.field}", value=self.value, rule=self.rule)

    def __str__(self) -> str:
        return f"{self.field} is {self.value}: {self.rule}"


class InvalidRequest(UsageError):
    """One or more fields of a request are invalid. Nothing was stored."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "; ".join(map(str, self.problems))


class UnknownType(InvalidRequest):
    """No task of the app has the type of the job. Nothing was stored."""

    def __init__(self, type: str, known: Sequence[str]) -> None:
        near = get_close_matches(type, known, n=1)
        others = f" and {len(known) - _MAX_LISTED} others" if len(known) > _MAX_LISTED else ""
        more = f"did you mean {near[0]!r}?" if near else f"known types: {', '.join(known[:_MAX_LISTED])}{others}"
        super().__init__([Problem(field="type", value=repr(type), rule=f"no task of the app has this type; {more}")])
        self.args = (type, known)
        self.type, self.known = type, known


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


class OperationConflict(UsageError):
    """The idempotency key was used for another bulk operation. Nothing was stored."""

    def __init__(self, key: str, operation_id: UUID) -> None:
        super().__init__(key, operation_id)
        self.key, self.operation_id = key, operation_id

    def __str__(self) -> str:
        return (
            f"idempotency key {self.key!r} belongs to operation {self.operation_id}, which is another request: "
            "use another key, or send the same request"
        )


class IllegalTransition(UsageError):
    """The job's status does not allow the transition. Nothing changed."""

    def __init__(self, job_id: JobId, status: str, event: str) -> None:
        super().__init__(job_id, status, event)
        self.job_id, self.status, self.event = job_id, status, event

    def __str__(self) -> str:
        return f"cannot {self.event} job {self.job_id}: it is {self.status}"


class PayloadNotEncodable(UsageError):
    """A value inside a payload or result cannot be stored."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class PayloadTooLarge(PayloadNotEncodable):
    """The encoded payload or result is larger than the limit."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            "$", f"{size:,} bytes encoded, the limit is {limit:,}: store it elsewhere and pass a reference"
        )
        self.args = (size, limit)
        self.size, self.limit = size, limit


class PayloadNotDecodable(UsageError):
    """This codec did not write the stored bytes."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot decode the stored bytes: {self.reason}"


class CallNotReadable(PayloadNotDecodable):
    """The stored call or result does not match the task, such as when another version of the task wrote it."""

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(reason)
        self.args = (task, reason)
        self.task = task

    def __str__(self) -> str:
        return f"stored data does not match task {self.task!r}: {self.reason}"


class CodecMismatch(UsageError):
    """The payloads in the store were written with another codec. Nothing was stored."""

    def __init__(self, recorded: str, ours: str) -> None:
        super().__init__(recorded, ours)
        self.recorded, self.ours = recorded, ours

    def __str__(self) -> str:
        return (
            f"the payloads in this store were written with codec {self.recorded!r}, not {self.ours!r}: "
            "name the app that uses that codec, or pass codec=… in Python; "
            "to change the codec of a store, see 'taskharbor codec --help'"
        )


class ApiKeyRequired(UsageError):
    """The API's address is reachable from other hosts, and the store has no API key."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return (
            f"refused to listen on {self.host!r}: other hosts can reach it, and this store has no API key; "
            "create one with 'taskharbor keys create', or listen on 127.0.0.1"
        )


class AddressUnavailable(TaskHarborError):
    """A server cannot bind this address. *options* are those of the command line that choose another one."""

    def __init__(self, host: str, port: int, reason: str, options: str = "--host or --port") -> None:
        super().__init__(host, port, reason, options)
        self.host, self.port, self.reason, self.options = host, port, reason, options

    def __str__(self) -> str:
        return f"cannot listen on {self.host!r}, port {self.port}: {self.reason}; choose another {self.options}"


class EnqueueRefused(TaskHarborError):
    """Some jobs of a batch were refused; the other jobs of the batch are stored.

    ``answers`` has one entry per request, in order: an `Enqueued`, or the error that refused the job.
    """

    def __init__(self, answers: Sequence[object]) -> None:
        super().__init__(answers)
        self.answers = tuple(answers)

    @property
    def refused(self) -> dict[int, TaskHarborError]:
        """The errors of the refused requests, by position in the batch."""
        return {n: answer for n, answer in enumerate(self.answers) if isinstance(answer, TaskHarborError)}

    def __str__(self) -> str:
        place, first = next(iter(self.refused.items()))
        stored = len(self.answers) - len(self.refused)
        return f"{len(self.refused)} of {len(self.answers)} jobs refused, {stored} stored; job {place}: {first}"


class JobNotFound(TaskHarborError):
    """No job has this id. It never existed, or retention removed it."""

    def __init__(self, job_id: JobId) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"job {self.job_id} not found"


class JobFailed(TaskHarborError):
    """The job ended without a result: it is dead or canceled."""

    def __init__(self, job_id: JobId, status: str, error: str) -> None:
        super().__init__(job_id, status, error)
        self.job_id, self.status, self.error = job_id, status, error

    def __str__(self) -> str:
        return f"job {self.job_id} is {self.status}" + (f": {self.error}" if self.error else "")


class ResultTimeout(TaskHarborError):
    """The job did not finish before the caller's timeout. It is not canceled.

    *status* is its status after the timeout, and *reason* what it waits for then. Both are None if they are unknown.
    """

    def __init__(self, job_id: JobId, timeout: timedelta, status: str | None = None, reason: str | None = None) -> None:
        super().__init__(job_id, timeout, status, reason)
        self.job_id, self.timeout, self.status, self.reason = job_id, timeout, status, reason

    def __str__(self) -> str:
        state = "" if self.status is None else f"; it is {self.status}: {self.reason}"
        return f"job {self.job_id} did not finish within {self.timeout.total_seconds():g} s{state}"


class JobTimedOut(TaskHarborError):
    """The handler ran longer than the job's timeout."""

    def __init__(self, job_id: JobId, timeout: timedelta) -> None:
        super().__init__(job_id, timeout)
        self.job_id, self.timeout = job_id, timeout

    def __str__(self) -> str:
        return f"job {self.job_id} ran longer than its timeout of {duration_text(self.timeout.total_seconds())}"


class LeaseLost(TaskHarborError):
    """The lease no longer holds the job. Nothing changed."""

    def __init__(self, job_id: JobId) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"lease on job {self.job_id} lost"


class JobNotInflight(LeaseLost):
    """No worker holds the job."""

    def __str__(self) -> str:
        return f"job {self.job_id} is not being processed"


class LeaseMismatch(LeaseLost):
    """Another lease holds the job."""

    def __str__(self) -> str:
        return f"job {self.job_id} is leased under another token"


class LeaseExpired(LeaseLost):
    """The lease expired before the call."""

    def __str__(self) -> str:
        return f"lease on job {self.job_id} expired"


class OperationNotFound(TaskHarborError):
    """No bulk operation has this id."""

    def __init__(self, operation_id: UUID | str) -> None:
        super().__init__(operation_id)
        self.operation_id = operation_id

    def __str__(self) -> str:
        return f"operation {self.operation_id} not found"


class OutcomeNotStorable(TaskHarborError):
    """The store can never hold the data of this outcome. Nothing changed; the lease is still valid."""

    def __init__(self, job_id: JobId, reason: str) -> None:
        super().__init__(job_id, reason)
        self.job_id, self.reason = job_id, reason

    def __str__(self) -> str:
        return f"the outcome of job {self.job_id} cannot be stored: {self.reason}"


class ScheduleNotFound(TaskHarborError):
    """No schedule has this name. *near* is the closest existing name."""

    def __init__(self, name: str, near: str | None = None) -> None:
        super().__init__(name, near)
        self.name, self.near = name, near

    def __str__(self) -> str:
        return f"schedule {self.name!r} not found" + (f"; did you mean {self.near!r}?" if self.near else "")


class SchemaOutOfDate(TaskHarborError):
    """The store's schema does not match this code."""

    def __init__(self, found: str, wanted: str, remedy: str) -> None:
        super().__init__(found, wanted, remedy)
        self.found, self.wanted, self.remedy = found, wanted, remedy

    def __str__(self) -> str:
        if self.found == "0":
            return f"the store has no TaskHarbor tables yet: {self.remedy}"
        return f"the store's schema is {self.found}, this code needs {self.wanted}: {self.remedy}"


class StoreUnavailable(TaskHarborError):
    """The store cannot be reached. It may be unknown whether the last write took effect.

    *retry_in* is set if the store is known to be unavailable: this call failed without waiting,
    and calls before then will too. If it is None, an immediate retry may succeed.
    """

    def __init__(self, reason: str, *, retry_in: timedelta | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_in = retry_in

    def __str__(self) -> str:
        wait = "" if self.retry_in is None else f"; try again in {self.retry_in.total_seconds():.2g} s"
        return f"store unavailable: {self.reason}{wait}"


class StoreRefused(StoreUnavailable):
    """The store refuses this user, password, database or file. Until that is corrected, a retry will not help."""
