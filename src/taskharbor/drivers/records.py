"""What the SQL drivers share: column lists, row mappers, parameters and answers of a settlement, and `landing_case`.

A driver passes what differs between the stores: the codecs of encoded columns, and its own SQL expressions.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import groupby, product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, LiteralString, TypeVar

from taskharbor.core.errors import (
    JobNotFound,
    JobNotInflight,
    LeaseExpired,
    LeaseLost,
    LeaseMismatch,
    OutcomeNotStorable,
)
from taskharbor.core.failure import Failure
from taskharbor.core.log_lines import AttemptLines, decode_lines
from taskharbor.core.messages import DeliveryNote, DeliveryRole
from taskharbor.core.model import (
    ApiKey,
    Attempt,
    AttemptOutcome,
    AuditEntry,
    DeadTaskEvent,
    OutboxRow,
    Progress,
    Schedule,
    WorkerRecord,
)
from taskharbor.core.operations import (
    Operation,
    OperationKind,
    OperationOptions,
    OperationState,
    filter_from_json,
    filter_to_json,
)
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED
from taskharbor.core.results import DeadLetterGroup, Death, FinishedCount, QueueStats, Refusal
from taskharbor.core.schedule_runs import ScheduleRun, SkipReason
from taskharbor.core.states import Event, Status, status_after

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from taskharbor.core.ids import Token
    from taskharbor.core.model import Lease
    from taskharbor.core.operations import NewOperation, OperationStep
    from taskharbor.core.outcome import Outcome
    from taskharbor.core.results import Settlement
    from taskharbor.drivers.base import SettleAnswer

T = TypeVar("T")
Columns = tuple[LiteralString, ...]

JOB_COLUMNS: Final[Columns] = (
    "id", "type", "queue", "priority", "payload", "status", "scheduled_for", "timeout", "created_at",
    "attempt_count", "max_attempts", "last_error", "failed_at", "lease_token", "lease_expires_at", "worker_id",
    "processing_started_at", "completed_at", "settled_token", "life", "dispatch_at", "sent_at", "sends", "resends",
    "releases", "dead_reason", "dead_at", "cancel_requested_at", "idempotency_key", "result", "progress", "metadata",
)  # fmt: skip
"""In the order of `taskharbor.core.model.job_from_values`."""
SUMMARY_COLUMNS: Final[Columns] = tuple(name for name in JOB_COLUMNS if name not in {"payload", "result"})
"""In the order of `taskharbor.core.model.stored_summary`."""
ATTEMPT_COLUMNS: Final[Columns] = (
    "job_id", "token", "life", "attempt", "worker_id", "started_at", "ended_at", "event", "status", "outcome",
    "error_type", "message", "traceback", "fingerprint",
)  # fmt: skip
LOG_COLUMNS: Final[Columns] = ("job_id", "token", "attempt", "worker_id", "dropped", "lines", "saved_at")
OUTBOX_COLUMNS: Final[Columns] = (
    "job_id", "life", "type", "queue", "worker_id", "attempt_count", "max_attempts", "error", "dead_at",
    "next_at", "attempts", "last_error", "published_at", "given_up_at",
)  # fmt: skip
SCHEDULE_COLUMNS: Final[Columns] = (
    "name", "cron", "timezone", "type", "queue", "payload", "options", "next_at", "fired_at", "paused_at",
    "last_job_id", "declared_at",
)  # fmt: skip
WORKER_COLUMNS: Final[Columns] = (
    "id", "host", "pid", "queues", "types", "concurrency", "started_at", "seen_at", "lost_slots",
    "schedules", "busy_slots", "version", "library", "stopped_at",
)  # fmt: skip
REFUSAL_COLUMNS: Final[Columns] = ("job_id", "token", "event", "at")
API_KEY_COLUMNS: Final[Columns] = (
    "id", "name", "digest", "scopes", "created_at", "expires_at", "revoked_at", "used_at", "parent",
)  # fmt: skip
AUDIT_COLUMNS: Final[Columns] = ("id", "at", "actor", "action", "target", "detail")
DEATH_COLUMNS: Final[Columns] = (
    "job_id", "type", "queue", "life", "attempt_count", "reason", "worker_id", "traceparent",
)  # fmt: skip
FINISHED_COLUMNS: Final[Columns] = ("minute", "queue", "status", "count")
GROUP_COLUMNS: Final[Columns] = (
    "queue", "type", "fingerprint", "count", "error", "first_at", "last_at", "sample",
)  # fmt: skip
QUEUE_COLUMNS: Final[Columns] = (
    "name", "counts", "oldest_due", "paused_at", "paused_by", "paused_reason", "paused_until",
)  # fmt: skip
RUN_COLUMNS: Final[Columns] = ("schedule", "fire_time", "job_id", "skipped", "at")

STATUSES: Final[Mapping[str, Status]] = MappingProxyType({status.value: status for status in Status})
NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})


_decode: Final = json.JSONDecoder().raw_decode  # in half the time of json.loads, which also skips space


def text_map(value: str) -> Mapping[str, str]:
    """Decode a JSON object of strings, as a store returns it: without space around it."""
    return NO_METADATA if value == "{}" else MappingProxyType(_decode(value)[0])


def progress_from_json(value: str) -> Progress:
    return Progress(**json.loads(value))


def progress_to_json(progress: Progress) -> str:
    return json.dumps(asdict(progress))


_CODECS: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        "status": STATUSES.__getitem__,
        "event": Event,
        "outcome": AttemptOutcome,
        "progress": progress_from_json,
        "metadata": text_map,
        "options": text_map,
        "detail": text_map,
        "lines": decode_lines,
        "skipped": SkipReason,
    }
)
"""The columns that every store encodes in the same way."""


def row_mapper(
    columns: Columns, record: Callable[[Sequence[Any]], T], codecs: Mapping[str, Callable[[Any], Any]]
) -> Callable[[Sequence[Any]], T]:
    """Return a function that makes a record of a row that begins with *columns*.

    *codecs* decode the columns that the store encodes, by name. NULL is None without a codec.
    """
    size, known = len(columns), {**_CODECS, **codecs}
    decoders = [(place, known[name]) for place, name in enumerate(columns) if name in known]

    def map_row(row: Sequence[Any]) -> T:
        values = list(row[:size])
        for place, decode in decoders:
            if values[place] is not None:
                values[place] = decode(values[place])
        return record(values)

    return map_row


def attempt_from_values(values: Sequence[Any]) -> Attempt:
    named = dict(zip(ATTEMPT_COLUMNS, values, strict=True))
    error_type, message, traceback, fingerprint = (named.pop(name) for name in _FAILURE_COLUMNS)
    if error_type is None:
        return Attempt(**named)
    return Attempt(
        **named, failure=Failure(type=error_type, message=message, traceback=traceback, fingerprint=fingerprint)
    )


_FAILURE_COLUMNS: Final = ATTEMPT_COLUMNS[ATTEMPT_COLUMNS.index("error_type") :]


def log_from_values(values: Sequence[Any]) -> AttemptLines:
    return AttemptLines(**dict(zip(LOG_COLUMNS, values, strict=True)))


def outbox_row_from_values(values: Sequence[Any]) -> OutboxRow:
    named = dict(zip(OUTBOX_COLUMNS, values, strict=True))
    event = DeadTaskEvent(**{name: named.pop(name) for name in _EVENT_COLUMNS})
    return OutboxRow(event=event, **named)


_EVENT_COLUMNS: Final = OUTBOX_COLUMNS[: OUTBOX_COLUMNS.index("next_at")]


def schedule_from_values(values: Sequence[Any]) -> Schedule:
    return Schedule(**dict(zip(SCHEDULE_COLUMNS, values, strict=True)))


def worker_from_values(values: Sequence[Any]) -> WorkerRecord:
    return WorkerRecord(**dict(zip(WORKER_COLUMNS, values, strict=True)))


def refusal_from_values(values: Sequence[Any]) -> Refusal:
    return Refusal(**dict(zip(REFUSAL_COLUMNS, values, strict=True)))


def delivery_name(queue: str, role: DeliveryRole) -> str:
    """Return the name of the setting that holds the note of this queue and role."""
    return f"{role.value}:{queue}"


def delivery_names(queue: str) -> list[str]:
    return [delivery_name(queue, role) for role in DeliveryRole]


def delivery_from_values(queue: str, values: Sequence[Any]) -> DeliveryNote:
    name, problem, seen_at = values
    return DeliveryNote(queue=queue, role=DeliveryRole(name.partition(":")[0]), problem=problem, seen_at=seen_at)


def api_key_from_values(values: Sequence[Any]) -> ApiKey:
    return ApiKey(**dict(zip(API_KEY_COLUMNS, values, strict=True)))


def run_from_values(values: Sequence[Any]) -> ScheduleRun:
    return ScheduleRun(**dict(zip(RUN_COLUMNS, values, strict=True)))


def audit_entry_from_values(values: Sequence[Any]) -> AuditEntry:
    return AuditEntry(**dict(zip(AUDIT_COLUMNS, values, strict=True)))


def death_from_values(values: Sequence[Any]) -> Death:
    return Death(**dict(zip(DEATH_COLUMNS, values, strict=True)))


def finished_count_from_values(values: Sequence[Any]) -> FinishedCount:
    return FinishedCount(**dict(zip(FINISHED_COLUMNS, values, strict=True)))


def dead_letter_group_from_values(values: Sequence[Any]) -> DeadLetterGroup:
    named = dict(zip(GROUP_COLUMNS, values, strict=True))
    return DeadLetterGroup(**named | {"error": named["error"] or ""})


def queue_stats_from_values(values: Sequence[Any]) -> QueueStats:
    """Return the statistics of a queue; a status without a job may be missing in its counts."""
    named = dict(zip(QUEUE_COLUMNS, values, strict=True))
    counted = named["counts"] or {}
    reason = named["paused_reason"] or ""
    counts = {status: counted.get(status, 0) for status in Status}
    return QueueStats(**named | {"counts": counts, "paused_reason": reason})


OPERATION_COLUMNS: Final[Columns] = (
    "id", "kind", "actor", "reason", "filter", "options", "matched", "is_capped", "digest", "state",
    "created_at", "next_at", "started_at", "ended_at", "stopped_by", "cursor", "is_searched", "job_ids", "step",
    "done", "refused",
)  # fmt: skip
_OPERATION_CODECS: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        "kind": OperationKind,
        "filter": filter_from_json,
        "options": OperationOptions.from_json,
        "state": OperationState,
        "refused": json.loads,
        "is_capped": bool,
        "is_searched": bool,
    }
)


def operation_mapper(codecs: Mapping[str, Callable[[Any], Any]]) -> Callable[[Sequence[Any]], Operation]:
    """Return a function that makes an operation of a row of `OPERATION_COLUMNS`."""

    def operation(values: Sequence[Any]) -> Operation:
        named = dict(zip(OPERATION_COLUMNS, values, strict=True))
        return Operation(by=named.pop("actor"), **named)

    return row_mapper(OPERATION_COLUMNS, operation, {**codecs, **_OPERATION_CODECS})


def operation_params(new: NewOperation) -> dict[str, Any]:
    """Return the statement parameters of a new operation, except its id and job ids, which each store encodes."""
    return {
        "kind": new.kind.value,
        "actor": new.by,
        "reason": new.reason,
        "filter": None if new.filter is None else filter_to_json(new.filter),
        "options": new.options.to_json(),
        "matched": new.matched,
        "is_capped": new.is_capped,
        "digest": new.digest,
    }


def requeue_of_step(step: OperationStep) -> RequeueChange:
    """Return the arguments of the requeues of an operation's step."""
    operation = step.operation
    return RequeueChange(
        token=step.token,
        budget=operation.options.budget,
        by=operation.by,
        reason=operation.reason,
        queue=None,
        payload=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueChange:
    """The arguments of a requeue, except its time: each store computes that by its own clock."""

    token: Token
    budget: int | None
    by: str
    reason: str
    queue: str | None
    payload: bytes | None


def outcome_params(outcome: Outcome) -> dict[str, Any]:
    """Return the statement parameters of *outcome*, except its delay, which each store encodes in its own way."""
    failure = outcome.recorded_failure
    return {
        "event": outcome.event.value,
        "outcome": outcome.attempt_outcome.value,
        "bound": outcome.bound,
        "reason": outcome.reason if outcome.event is Event.FAIL and outcome.reason else ATTEMPTS_EXHAUSTED,
        "error": None if failure is None else str(failure) or None,
        "error_type": None if failure is None else failure.type,
        "message": None if failure is None else failure.message,
        "traceback": None if failure is None else failure.traceback,
        "fingerprint": None if failure is None else failure.fingerprint,
        "traceparent": outcome.traceparent,
    }


def fence_error(lease: Lease, status: str | None, token: Token | None) -> JobNotFound | LeaseLost:
    """Return why the fence rejected *lease*, by the *status* and lease *token* of its job (None: there is no job).

    If both match, the lease has expired.
    """
    if status is None:
        return JobNotFound(lease.job_id)
    if status != Status.PROCESSING:
        return JobNotInflight(lease.job_id)
    return LeaseMismatch(lease.job_id) if token != lease.token else LeaseExpired(lease.job_id)


def landing_case(
    events: Collection[Event], *, event: LiteralString = "", job: LiteralString = "", attempts: LiteralString
) -> LiteralString:
    """Render `status_after` as a CASE expression: the status in which one of *events* leaves a job.

    *event* is the SQL of the event's name (not needed for one event), *job* prefixes the columns of the job,
    and *attempts* is the SQL of the attempts that count afterwards.
    """
    flags: dict[str, LiteralString] = {
        "cancel_requested": f"{job}cancel_requested_at IS NOT NULL",
        "exhausted": f"{attempts} >= {job}max_attempts",
        "sent": f"{job}sent_at IS NOT NULL",
    }
    arms: list[tuple[LiteralString, Status]] = []
    undecided = []  # the events whose status depends on a flag
    for each in (each for each in Event if each in events):
        landings = _landings(each, {}, flags)
        if len(landings) == 1:
            arms.append((f"{event} = '{each.value}'", landings.pop()))
        else:
            undecided.append(each)
    known: dict[str, bool] = {}
    # A flag that is true decides for some events, if all flags before it are false.
    for flag, condition in flags.items():
        for status in Status:
            decided = [each for each in undecided if _landings(each, known | {flag: True}, flags) == {status}]
            if decided:
                arms.append((" AND ".join([*_is_among(event, decided, undecided), condition]), status))
        known[flag] = False
    remaining = [(each, status_after(each, **known)) for each in undecided]
    otherwise = remaining[-1][1]
    arms += [(f"{event} = '{each.value}'", status) for each, status in remaining if status is not otherwise]
    return f"CASE {' '.join(_whens(arms))} ELSE '{otherwise.value}' END"


def _landings(event: Event, known: Mapping[str, bool], flags: Iterable[str]) -> set[Status]:
    """Return every status after *event* if only the *known* of the *flags* are given."""
    free = [flag for flag in flags if flag not in known]
    given = [dict(zip(free, values, strict=True)) for values in product((False, True), repeat=len(free))]
    return {status_after(event, **known, **each) for each in given}


def _is_among(event: LiteralString, some: Sequence[Event], every: Sequence[Event]) -> list[LiteralString]:
    """Return the conditions under which an event of *every* is among *some*."""
    return [f"{event} <> '{each.value}'" for each in every if each not in some]


def _whens(arms: Sequence[tuple[LiteralString, Status]]) -> list[LiteralString]:
    """Render the arms of a CASE expression; neighbors of one status become one arm."""
    return [
        f"WHEN {' OR '.join(condition for condition, _ in neighbors)} THEN '{status.value}'"
        for status, neighbors in groupby(arms, key=lambda arm: arm[1])
    ]


def settle_separately(
    settlements: Sequence[Settlement],
    record: Callable[[Sequence[Settlement]], list[SettleAnswer]],
    rejection: Callable[[Exception], str | None],
) -> list[SettleAnswer]:
    """Record *settlements* together; if the store rejects the data of one, by halves, until that one is alone.

    *rejection* returns what is wrong with the data, or None if the error has another cause: then it is raised.
    *record* may be repeated: an outcome that is already recorded gets the same answer.
    """
    try:
        return record(settlements)
    except Exception as error:
        reason = rejection(error)
        if reason is None:
            raise
    if len(settlements) == 1:
        return [OutcomeNotStorable(settlements[0].lease.job_id, reason)]
    half = len(settlements) // 2
    parts = (settlements[:half], settlements[half:])
    return [answer for part in parts for answer in settle_separately(part, record, rejection)]


def audit_column(
    *, target: str | None, actor: str | None, action: str | None
) -> tuple[Literal["target", "actor", "action"] | None, str | None]:
    """Return the column by which audit entries are selected, and its value; None if all entries are wanted."""
    if target is not None:
        return "target", target
    if actor is not None:
        return "actor", actor
    return (None, None) if action is None else ("action", action)
