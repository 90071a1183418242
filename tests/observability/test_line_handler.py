"""The lines of a batch: the same bytes as single records, for the command line's own handlers only."""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor import Client, JobRequest, MemoryDriver
from taskharbor.cli.log_output import JsonFormatter, TextFormatter
from taskharbor.core.errors import LeaseExpired
from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled
from taskharbor.core.states import Status
from taskharbor.observability.attempt_log import AttemptLog
from taskharbor.observability.hook_caller import HookCaller
from taskharbor.observability.line_handler import MAX_WRITE_BYTES, LineHandler, line_handlers
from taskharbor.runtime import ThreadRuntime
from taskharbor.worker import hooks as worker_hooks
from taskharbor.worker.execution import Execution
from taskharbor.worker.hooks import AttemptHooks
from taskharbor.worker.refusals import RefusalNotes
from tests.support.stages import StageRecorder
from tests.support.worker_rig import drained

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.core.model import Claim

HOUR: Final = timedelta(hours=1)
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
BOOM: Final = Failure(type="ValueError", message="bad\n\x1bvalue ü", traceback="Traceback\n  ü\nValueError: bad\n")
TIMED_OUT: Final = replace(BOOM, type="taskharbor.JobTimedOut")
ENDS: Final[list[tuple[Outcome, Status]]] = [
    (Outcome.ack(), Status.SUCCEEDED),
    (Outcome.ack(b"1"), Status.SUCCEEDED),
    (Outcome.retry(after=HOUR, failure=BOOM), Status.FAILED),
    (Outcome.retry(after=HOUR, failure=TIMED_OUT), Status.FAILED),
    (Outcome.retry(after=HOUR, failure=BOOM), Status.CANCELED),
    (Outcome.retry(after=HOUR, failure=BOOM), Status.DEAD),
    (Outcome.fail("no such \u202euser", failure=BOOM), Status.DEAD),
    (Outcome.fail("no handler"), Status.DEAD),
    (Outcome.cancel("cancel requested"), Status.CANCELED),
    (Outcome.snooze(after=HOUR), Status.PENDING),
    (Outcome.release(), Status.PENDING),
]
FORMATTERS: Final = [TextFormatter, JsonFormatter]


class Records(LineHandler):
    """The ordinary way: another class, so that it gets records."""


class Clock:
    """The time of logging, which only a test moves."""

    def __init__(self) -> None:
        self.seconds = 1_900_000_000.25

    def time(self) -> float:
        return self.seconds

    def time_ns(self) -> int:
        return int(self.seconds * 1_000_000_000)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class Writes(io.StringIO):
    """A stream that keeps each write."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def write(self, text: str) -> int:
        self.parts.append(text)
        return super().write(text)


def claims(count: int = 1, **fields: Any) -> list[Claim]:
    driver = MemoryDriver()
    for _ in range(count):
        Client(driver).enqueue(JobRequest(**{"type": "run", **fields}))
    return driver.reserve("default", token=new_token(), worker="w", lease=HOUR, limit=count, overdue_after=HOUR)


JOB: Final = claims()[0].job


def logger_to(*handlers: logging.Handler) -> logging.Logger:
    """Return a logger that no other part of the process knows."""
    log = logging.Logger("taskharbor.worker", logging.INFO)  # noqa: LOG001  getLogger would share it
    log.handlers.extend(handlers)
    return log


def line_handler(stream: Any, formatter: Any = TextFormatter, of: type[LineHandler] = LineHandler) -> LineHandler:
    made = formatter()
    handler = of(made, made.format_successes)
    handler.setStream(stream)
    return handler


def log_success(log: logging.Logger) -> None:
    lines = AttemptLog(log, count=2)
    lines.succeeded([JOB], [0.25])
    lines.flush()


entries: Final = st.tuples(
    st.sampled_from(ENDS),
    st.none() | st.floats(0, 1_000_000),
    st.sampled_from([0.0, 2**-13, 2**-10, 0.875, 1.0, 3600.5]),  # until it ends; each is exact as a float
    st.text(max_size=8),
)


def logged(of: type[LineHandler], formatter: Any, write: Callable[[AttemptLog, Clock], None], *levels: int) -> str:
    """Return what *write* logs to a handler of class *of*. *levels* are those of the logger and of the handler."""
    stream, clock = io.StringIO(), Clock()
    handler = line_handler(stream, formatter, of)
    log = logger_to(handler)
    if levels:
        log.setLevel(levels[0])
        handler.setLevel(levels[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging, "time", clock)
        lines = AttemptLog(log, count=2)
        write(lines, clock)
        lines.flush()
    return stream.getvalue()


@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(entries, max_size=12),
    formatter=st.sampled_from(FORMATTERS),
    level=st.sampled_from([logging.INFO, logging.WARNING, logging.ERROR]),
    handler_level=st.sampled_from([logging.NOTSET, logging.WARNING]),
)
def test_the_lines_of_a_batch_are_those_of_single_records(
    ends: list[Any], formatter: Any, level: int, handler_level: int
) -> None:
    def write(lines: AttemptLog, clock: Clock) -> None:
        for (outcome, status), seconds, later, name in ends:
            clock.seconds += later
            job = replace(JOB, type=f"{name}:{status}")
            if status is Status.SUCCEEDED:
                lines.succeeded([job], [seconds])
            else:
                error = ValueError("bad") if status is Status.DEAD else None
                lines.ended(job, outcome, status, seconds=seconds, now=NOW, error=error)

    batch = logged(LineHandler, formatter, write, level, handler_level)

    assert batch == logged(Records, formatter, write, level, handler_level)


@pytest.mark.parametrize("formatter", FORMATTERS)
def test_the_line_of_a_success_escapes_what_that_of_its_record_escapes(formatter: Any) -> None:
    job = replace(JOB, type='a"\\\x1b', queue='b"\\\x1b', worker_id='c"\\\x1b')

    def write(lines: AttemptLog, _clock: Clock) -> None:
        lines.succeeded([job], [0.25])

    assert logged(LineHandler, formatter, write) == logged(Records, formatter, write)


@pytest.mark.parametrize("formatter", FORMATTERS)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: f"{end[0].event}-{end[1]}")
@pytest.mark.parametrize("seconds", [None, 0.0, 0.0123, 90.0])
def test_each_kind_of_line_is_that_of_a_single_record(
    end: tuple[Outcome, Status], seconds: float | None, formatter: Any
) -> None:
    def write(lines: AttemptLog, clock: Clock) -> None:
        lines.succeeded([JOB], [seconds])
        lines.ended(JOB, *end, seconds=seconds, now=NOW)
        clock.seconds += 2**-13
        lines.succeeded([JOB], [seconds])

    batch = logged(LineHandler, formatter, write)

    assert batch == logged(Records, formatter, write)
    assert batch.count("succeeded") >= 2


def test_a_line_has_the_time_of_its_attempt_and_not_of_its_write() -> None:
    def write(lines: AttemptLog, clock: Clock) -> None:
        for _ in range(2):
            lines.succeeded([JOB], [None])
            clock.seconds += 0.5
        clock.seconds += 30

    text = logged(LineHandler, TextFormatter, write)

    assert [line.partition(",")[2][:3] for line in text.splitlines()] == ["250", "750"]


# Each of these lets the user see records; it returns the list of what was seen.
def with_handler(log: logging.Logger, seen: list[logging.LogRecord]) -> None:
    handler: Any = logging.Handler()
    handler.emit = seen.append
    log.addHandler(handler)


def with_handler_of_parent(log: logging.Logger, seen: list[logging.LogRecord]) -> None:
    log.parent = logging.Logger("taskharbor")  # noqa: LOG001  as above
    with_handler(log.parent, seen)


def kept_in(seen: list[logging.LogRecord], record: logging.LogRecord) -> bool:
    seen.append(record)
    return True


def with_filter(log: logging.Logger, seen: list[logging.LogRecord]) -> None:
    log.addFilter(partial(kept_in, seen))


def with_filter_of_handler(log: logging.Logger, seen: list[logging.LogRecord]) -> None:
    log.handlers[0].addFilter(partial(kept_in, seen))


def with_formatter(log: logging.Logger, seen: list[logging.LogRecord]) -> None:
    class Own(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            seen.append(record)
            return ""

    log.handlers[0].setFormatter(Own())


def with_patched_handler(log: logging.Logger, seen: list[logging.LogRecord]) -> None:
    handler: Any = log.handlers[0]
    handler.emit = seen.append


def with_patched_logger(log: logging.Logger, seen: list[logging.LogRecord]) -> None:
    patched: Any = log
    patched.handle = seen.append


def with_class_of_logger(log: logging.Logger, seen: list[logging.LogRecord]) -> None:
    class Own(logging.Logger):
        def handle(self, record: logging.LogRecord) -> None:
            seen.append(record)

    log.__class__ = Own


WAYS: Final = [
    with_handler,
    with_handler_of_parent,
    with_filter,
    with_filter_of_handler,
    with_formatter,
    with_patched_handler,
    with_patched_logger,
    with_class_of_logger,
]


@pytest.mark.parametrize("change", WAYS)
def test_whatever_a_user_adds_to_logging_gets_each_record(
    change: Callable[[logging.Logger, list[logging.LogRecord]], None],
) -> None:
    log, seen = logger_to(line_handler(io.StringIO())), list[logging.LogRecord]()
    change(log, seen)

    log_success(log)

    [record] = seen
    assert record.getMessage() == f"job {JOB.id} (run) attempt 1 of 20: succeeded in 250 ms"
    assert (record.levelno, record.args) == (logging.INFO, (str(JOB.id), "run", 1, 20, "250 ms"))
    assert vars(record)["duration_ms"] == 250.0


def test_a_class_of_logging_that_an_error_tracker_patches_gets_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, standard = list[logging.LogRecord](), logging.Logger.callHandlers

    def patched(self: logging.Logger, record: logging.LogRecord) -> None:
        seen.append(record)
        standard(self, record)

    monkeypatch.setattr(logging.Logger, "callHandlers", patched)
    log_success(logger_to(line_handler(io.StringIO())))

    assert len(seen) == 1


def test_a_record_factory_makes_each_record() -> None:
    made, standard = list[logging.LogRecord](), logging.getLogRecordFactory()

    def make(*args: Any, **options: Any) -> logging.LogRecord:
        made.append(standard(*args, **options))
        return made[-1]

    logging.setLogRecordFactory(make)
    try:
        log_success(logger_to(line_handler(io.StringIO())))
    finally:
        logging.setLogRecordFactory(standard)

    assert len(made) == 1


def test_two_handlers_of_the_command_line_both_get_the_lines() -> None:
    first, second = io.StringIO(), io.StringIO()
    log = logger_to(line_handler(first))
    log.parent = logger_to(line_handler(second))

    log_success(log)
    assert first.getvalue() == second.getvalue() != ""

    log.propagate = False
    log_success(log)
    assert first.getvalue().count("\n") == 2
    assert second.getvalue().count("\n") == 1


def test_a_single_attempt_is_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(LineHandler, "write_batch")
    stream = io.StringIO()
    lines = AttemptLog(logger_to(line_handler(stream)), count=1)

    lines.succeeded([JOB], [0.25])
    lines.flush()

    assert stream.getvalue().endswith("succeeded in 250 ms\n")


def test_a_logger_without_handlers_uses_the_last_resort() -> None:
    assert line_handlers(logger_to()) is None


def test_successes_that_are_logged_together_have_a_line_each() -> None:
    stream = Writes()
    lines = AttemptLog(logger_to(line_handler(stream)), count=3)

    lines.succeeded([replace(JOB, type=name) for name in "abc"], [0.25, None, 90.0])
    lines.flush()

    ends = [line.partition(f"job {JOB.id} ")[2] for line in stream.getvalue().splitlines()]
    assert ends == [
        "(a) attempt 1 of 20: succeeded in 250 ms",
        "(b) attempt 1 of 20: succeeded",
        "(c) attempt 1 of 20: succeeded in 90 s",
    ]


def test_lines_of_any_length_fill_writes_as_far_as_they_stay_atomic() -> None:
    sizes = (4_095, 1, 2_047, 2_047, 2_047, 2_048, 2_046, 5_000, 0, 0)
    stream = Writes()
    handler = LineHandler(logging.Formatter("%(message)s"), lambda _: [])
    handler.setStream(stream)

    handler.write_batch([logging.makeLogRecord({"msg": size * "x", "levelno": logging.INFO}) for size in sizes])

    assert [len(part) for part in stream.parts] == [4_096, 2 + 2_048, 4_096, 2_049 + 2_047, 5_001, 2]


def test_a_line_with_any_characters_is_never_torn_in_a_pipe() -> None:
    stream = Writes()
    lines = AttemptLog(logger_to(line_handler(stream)), count=2)

    lines.succeeded([replace(JOB, type="😀" * 200)] * 9, [0.25] * 9)
    lines.flush()

    assert max(len(part.encode("ascii", "backslashreplace")) for part in stream.parts) <= MAX_WRITE_BYTES


def test_lines_are_written_together_but_never_torn_in_a_pipe() -> None:
    stream = Writes()
    lines = AttemptLog(logger_to(line_handler(stream)), count=2)

    for number in range(200):
        lines.succeeded([replace(JOB, type="ü" * (number % 40))], [0.25])
    lines.flush()

    assert len(stream.parts) < 100
    assert all(part.endswith("\n") for part in stream.parts)
    assert max(len(part.encode()) for part in stream.parts) <= MAX_WRITE_BYTES
    assert stream.getvalue().count("\n") == 200


def test_a_long_line_is_written_alone_and_whole() -> None:
    stream = Writes()
    lines = AttemptLog(logger_to(line_handler(stream)), count=2)

    for name in ("a", "b" * MAX_WRITE_BYTES, "c"):
        lines.succeeded([replace(JOB, type=name)], [0.25])
    lines.flush()

    assert [part.partition("(")[2][0] for part in stream.parts] == ["a", "b", "c"]


def test_the_lock_of_the_handler_is_held_from_the_first_line_to_the_last() -> None:
    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            taken.append(other_thread_can_lock())
            return super().write(text)

    def other_thread_can_lock() -> bool:
        result: list[bool] = []

        def attempt() -> None:
            assert handler.lock is not None
            result.append(handler.lock.acquire(blocking=False))
            if result[0]:
                handler.lock.release()

        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
        return result[0]

    taken = list[bool]()
    handler = line_handler(Stream())
    lines = AttemptLog(logger_to(handler), count=2)
    for _ in range(100):
        lines.succeeded([JOB], [0.25])
    lines.flush()

    assert len(taken) > 1
    assert not any(taken)
    assert other_thread_can_lock()


def test_a_full_disk_and_a_broken_pipe_stop_nothing_and_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    for stream, reason in ((open("/dev/full", "w"), "No space left"), (os.fdopen(write_end, "w"), "Broken pipe")):  # noqa: PTH123, SIM115  a device
        log_success(logger_to(line_handler(stream)))
        with pytest.raises(OSError, match=reason):
            stream.close()

        said = capsys.readouterr().err
        assert reason in said
        assert str(JOB.id) in said


def test_a_line_that_cannot_be_encoded_is_the_only_one_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    raw = io.BytesIO()
    lines = AttemptLog(logger_to(line_handler(io.TextIOWrapper(raw, "ascii", errors="strict"))), count=2)

    for name in ("first", "ü", "last"):
        lines.succeeded([replace(JOB, type=name)], [0.25])
    lines.flush()

    assert [line.partition("(")[2].partition(")")[0] for line in raw.getvalue().decode().splitlines()] == [
        "first",
        "last",
    ]
    assert "UnicodeEncodeError" in capsys.readouterr().err


def test_a_record_that_cannot_be_formatted_is_the_only_one_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    made = [
        logging.makeLogRecord({"msg": text, "args": ("x",), "levelno": logging.INFO, "levelname": "INFO"})
        for text in ("first %s", "second %d", "third %s")
    ]

    line_handler(stream).write_batch(made)

    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == ["first x", "third x"]
    assert "second %d" in capsys.readouterr().err


@pytest.fixture
def worker_log(monkeypatch: pytest.MonkeyPatch) -> Writes:
    """Replace the logger of attempts by one that logs as the command line does."""
    stream = Writes()
    monkeypatch.setattr("taskharbor.worker.hooks._LOG", logger_to(line_handler(stream)))
    return stream


def test_a_worker_writes_the_lines_of_attempts_that_are_settled_together_together(worker_log: Writes) -> None:
    async def run(_job: Any) -> None: ...

    driver = MemoryDriver()
    for _ in range(200):
        Client(driver).enqueue(JobRequest(type="run"))
    drained(driver, {"run": run}, concurrency=200)

    assert worker_log.getvalue().count("succeeded") == 200
    assert len(worker_log.parts) < 100


def test_a_lost_outcome_is_logged_in_the_order_of_the_attempts_and_hooks_follow(worker_log: Writes) -> None:
    executions = [Execution(claim, ends_at=0.0, times_out_at=None) for claim in claims(3)]
    ack, lost = Outcome.ack(), LeaseExpired(executions[1].claim.job.id)
    first, _, last = (Settled(execution.claim.job.id, Status.SUCCEEDED) for execution in executions)
    log = worker_hooks._LOG.info  # noqa: SLF001  what the fixture has set

    def reported(*hooks: Any) -> list[str]:
        worker_log.truncate(0)
        worker_log.seek(0)
        refusals = RefusalNotes(StageRecorder().loops)
        leases = cast("Any", SimpleNamespace(advice=lambda _execution: "", refusals=refusals))
        caller = HookCaller(hooks, logging.getLogger("taskharbor.worker"))
        stage = AttemptHooks(ThreadRuntime(sync_threads=1), caller, StageRecorder().loops, leases, None)
        stage.recorded([(execution, ack) for execution in executions], [first, lost, last])
        return [line.rpartition(" ")[2] for line in worker_log.getvalue().splitlines()]

    assert reported() == ["succeeded", "expired", "succeeded"]
    assert reported(lambda event: log(type(event).__name__)) == [
        "succeeded",
        "expired",
        "succeeded",
        "JobsSucceeded",
        "AttemptLost",
    ]
