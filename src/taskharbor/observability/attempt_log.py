"""The log lines of attempts and dead letters. Each record also has its data as attributes, for structured logs."""

from __future__ import annotations

from functools import cached_property
from logging import ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Final

from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED
from taskharbor.core.states import FINAL, Event, Status
from taskharbor.core.text import duration_text, escape_lines, one_line
from taskharbor.core.trace_context import parse_traceparent
from taskharbor.observability.job_log import job_fields
from taskharbor.observability.line_handler import line_handlers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from logging import Logger, LogRecord

    from taskharbor.core.model import Job
    from taskharbor.core.outcome import Outcome
    from taskharbor.core.results import Death
    from taskharbor.observability.line_handler import LineHandler, Successes

MAX_REASON_CHARS: Final = 200
"""The length of an error's message or a reason in a log line; the record's attribute ``error`` has all of it."""
_ATTEMPT: Final = "job %s (%s) attempt %d of %d: "
_SUCCEEDED: Final = f"{_ATTEMPT}succeeded"
_SUCCEEDED_IN: Final = f"{_ATTEMPT}succeeded in %s"


class AttemptLog:
    """Logs attempts whose outcomes are recorded: a failure as WARNING, a death as ERROR, everything else as INFO.

    Handlers of the command line get the lines when `flush` is called: a record that is made, formatted and written
    alone takes 20 µs, a line of a batch 1 µs. The user's handlers and filters get each record at once. Call `flush`
    before anything else may write to the log, so that the lines stay in order. Each line has the time of its call.

    *count* is how many attempts there are at most. A single one is a record: to prepare a batch takes 8 µs.
    """

    def __init__(self, log: Logger, *, count: int) -> None:
        self._log = log
        self._count = count
        self._lines: list[Successes | LogRecord] = []

    @cached_property
    def _handlers(self) -> list[LineHandler] | None:
        return line_handlers(self._log) if self._count > 1 else None

    def succeeded(self, jobs: Sequence[Job], run_seconds: Sequence[float | None]) -> None:
        """Log successes. *run_seconds* are how long the handlers ran, None if one did not."""
        if not jobs or not self._log.isEnabledFor(INFO):
            return
        if self._handlers is not None:
            self._lines.append((_record(self._log, INFO, "", (), {}), jobs, run_seconds))
            return
        for job, seconds in zip(jobs, run_seconds, strict=True):
            text, args = _success(seconds)
            self._log.handle(_record(self._log, INFO, text, (*_attempt(job), *args), _fields(job, seconds)))

    def ended(
        self,
        job: Job,
        outcome: Outcome,
        status: Status,
        *,
        seconds: float | None,
        now: datetime,
        error: BaseException | None = None,
    ) -> None:
        """Log any other end. *error* is the exception of a death, if it may be logged: error trackers read it."""
        level = _level(outcome, status)
        if not self._log.isEnabledFor(level):
            return
        fields = _fields(job, seconds) | _error_fields(outcome)
        if outcome.delay and status not in FINAL:
            fields["retry_at"] = (now + outcome.delay).isoformat(timespec="milliseconds")
        text, args = _line(outcome, status, seconds)
        trace = outcome.failure.traceback if outcome.failure is not None and status is Status.DEAD else ""
        record = _record(self._log, level, text, (*_attempt(job), *args), fields, trace=trace, error=error)
        if self._handlers is None:
            self._log.handle(record)
        else:
            self._lines.append(record)

    def flush(self) -> None:
        """Write the lines that were collected."""
        lines, self._lines = self._lines, []
        if lines:
            for handler in self._handlers or ():
                handler.write_batch(lines)


def success_texts(jobs: Sequence[Job], run_seconds: Sequence[float | None], *, head: str = "") -> list[str]:
    """Return the messages of successes after *head*: those of records in half of the time."""
    texts: list[str] = []
    for job, seconds in zip(jobs, run_seconds, strict=True):
        digits = job.id.int.to_bytes(16).hex()  # a UUID takes three times as long to become text
        ended = "" if seconds is None else f" in {duration_text(seconds)}"
        texts.append(
            f"{head}job {digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]} ({job.type}) "
            f"attempt {job.attempt_count} of {job.max_attempts}: succeeded{ended}"
        )
    return texts


def duration_ms(seconds: float) -> float:
    """Return a duration in milliseconds, to the microsecond."""
    return int(seconds * 1_000_000) / 1_000


def _fields(job: Job, seconds: float | None) -> dict[str, object]:
    """Return the attributes that the records of all attempts have."""
    duration = None if seconds is None else duration_ms(seconds)
    return job_fields(job) | {"max_attempts": job.max_attempts, "duration_ms": duration}


def log_death(log: Logger, death: Death, cause: str) -> None:
    """Log a job that became a dead letter without an outcome, and so without a line about its attempt."""
    context = parse_traceparent(death.traceparent)
    fields = {
        "job_id": str(death.job_id),
        "type": death.type,
        "queue": death.queue,
        "attempt": death.attempt_count,
        "worker": death.worker_id,
        "trace_id": None if context is None else context.trace_id,
        "error": death.reason,
    }
    worker = "" if death.worker_id is None else f" (worker {one_line(death.worker_id, limit=MAX_REASON_CHARS)})"
    args = (death.job_id, death.type, death.attempt_count, cause, worker, _cause(death.reason))
    if log.isEnabledFor(ERROR):
        log.handle(_record(log, ERROR, "job %s (%s) attempt %d: %s%s; now a dead letter%s", args, fields))


def _level(outcome: Outcome, status: Status) -> int:
    if status is Status.DEAD:
        return ERROR
    return WARNING if outcome.event is Event.RETRY and status is not Status.CANCELED else INFO


def _line(outcome: Outcome, status: Status, seconds: float | None) -> tuple[str, tuple[object, ...]]:
    """Return the template of a line, and its arguments after those of the attempt."""
    if status is Status.SUCCEEDED:
        return _success(seconds)
    took, delay = "" if seconds is None else f" after {duration_text(seconds)}", outcome.delay.total_seconds()
    if status is Status.DEAD:
        return f"{_ATTEMPT}%s%s; now a dead letter%s", (_verb(outcome), took, _cause(_dead_reason(outcome)))
    if status is Status.CANCELED:
        return f"{_ATTEMPT}canceled%s%s", (took, _cause(outcome.reason))
    if outcome.event is Event.RETRY:
        args = (_verb(outcome), took, duration_text(delay), _cause(_error_text(outcome)))
        return f"{_ATTEMPT}%s%s; retrying in %s%s", args
    if outcome.event is Event.SNOOZE:
        return f"{_ATTEMPT}snoozed%s; due again in %s", (took, duration_text(delay))
    return f"{_ATTEMPT}released%s; due again now", (took,)


def _success(seconds: float | None) -> tuple[str, tuple[object, ...]]:
    return (_SUCCEEDED, ()) if seconds is None else (_SUCCEEDED_IN, (duration_text(seconds),))


def _attempt(job: Job) -> tuple[object, ...]:
    """Return the arguments of `_ATTEMPT`."""
    return str(job.id), job.type, job.attempt_count, job.max_attempts


def _record(
    log: Logger,
    level: int,
    text: str,
    args: tuple[object, ...],
    fields: Mapping[str, object],
    *,
    trace: str = "",
    error: BaseException | None = None,
) -> LogRecord:
    """Return a record. Unlike `Logger.log`, this does not search the stack for its caller's line."""
    raised = None if error is None else (type(error), error, error.__traceback__)
    record = log.makeRecord(log.name, level, __file__, 0, text, args, raised)
    record.__dict__.update(fields)
    if trace:
        record.__dict__["traceback"] = trace
        # The text that formatters print. It is limited in size, and cannot forge a line of the log.
        record.exc_text = escape_lines(trace)
    return record


def _error_fields(outcome: Outcome) -> dict[str, object]:
    if outcome.failure is not None:
        return {"error_class": outcome.failure.type, "error": outcome.failure.message}
    return {} if outcome.reason is None else {"error": outcome.reason}


def _verb(outcome: Outcome) -> str:
    if outcome.event is Event.RELEASE:
        return "released too often"
    return "timed out" if outcome.failure is not None and outcome.failure.is_timeout else "failed"


def _error_text(outcome: Outcome) -> str:
    return "" if outcome.failure is None or outcome.failure.is_timeout else str(outcome.failure)


def _dead_reason(outcome: Outcome) -> str:
    """Return the reason of a death without the error's message, which is the last line of the traceback."""
    failure, reason = outcome.failure, outcome.reason or ATTEMPTS_EXHAUSTED
    if failure is None or failure.is_timeout:
        return reason
    if reason == ATTEMPTS_EXHAUSTED:
        return f"{reason}: {failure.type}"
    return failure.type if reason == failure.message else reason


def _cause(text: str | None) -> str:
    """Return the last part of a line, in one line: what a handler wrote must not forge one or steer a terminal."""
    return f": {one_line(' '.join(text.split()), limit=MAX_REASON_CHARS)}" if text else ""
