"""The spans of enqueues and attempts, by the messaging conventions of OpenTelemetry. It needs opentelemetry-api.

No SDK is configured here. While the program has not configured one, no spans are made.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from math import inf
from random import getrandbits
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracerProvider,
    ProxyTracerProvider,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from taskharbor._version import __version__
from taskharbor.core.errors import IdempotencyConflict
from taskharbor.core.states import Event
from taskharbor.core.trace_context import (
    ATTEMPT_TRACEPARENT,
    TraceContext,
    context_entries,
    stored_context,
    with_context,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.trace import Span, Tracer, TracerProvider

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.model import Job, NewJob
    from taskharbor.core.outcome import Outcome
    from taskharbor.core.results import Enqueued, Settled

    Answer = Enqueued | IdempotencyConflict
    Attributes = dict[str, str | bool | int | float]

T = TypeVar("T")
_LOG: Final = logging.getLogger("taskharbor.tracing")
_ROOT: Final = Context()
_PREVIOUS_ATTEMPT: Final = {"taskharbor.link": "previous attempt"}
_OTHER_ERROR: Final = "_OTHER"
"""The error type of the conventions for an error without a name."""
_NANOSECONDS: Final = 1_000_000_000
MIN_ATTEMPTS_PER_SECOND: Final = 100
MAX_ATTEMPTS_PER_SECOND: Final = 1_000
"""How many attempts get a span: in any case, and with a whole second of CPU time in the second before.

The SDK takes twice as long for a span as a worker for a short job, so spans of all would halve its rate (ADR 0027).
"""


class AttemptSpan(NamedTuple):
    """The span of an attempt, and when the attempt began, in nanoseconds since 1970."""

    span: Span
    started_at: int

    @property
    def traceparent(self) -> str | None:
        """The context of the span, which the next attempt links to; None if the SDK raises an error."""
        context = _safely(lambda: _read(self.span.get_span_context()))
        return None if context is None else context.traceparent

    def begun_now(self) -> AttemptSpan:
        """Return the span of an attempt that has waited since its start, and begins now. The span includes the wait."""
        return AttemptSpan(self.span, time.time_ns())


class Spans:
    """Makes spans with *provider*; without it, with the global provider, as soon as the program has set one.

    An error that the SDK raises is logged and has no other effect.
    """

    def __init__(self, provider: TracerProvider | None = None, *, store: object = None) -> None:
        self._given = provider
        self._provider: TracerProvider | None = None
        self._tracer: Tracer | None = None
        self._server: Attributes = {}
        self._left, self._renewed_at, self._cpu_time = 0, -inf, time.process_time()
        self._untraced = _ROOT
        self._is_limit_logged = False
        self.use_store(store)

    def use_store(self, store: object) -> None:
        """Describe enqueues with the host and the port of *store*, if it has them as ``server_address``."""
        server: tuple[str, int] | None = getattr(store, "server_address", None)
        self._server = {} if server is None else {"server.address": server[0], "server.port": server[1]}

    def _current_tracer(self) -> Tracer | None:
        """Return the tracer, or None while there is no SDK: a span that goes nowhere takes 5 µs."""
        provider = self._given or trace.get_tracer_provider()
        if provider is not self._provider:
            is_empty = isinstance(provider, ProxyTracerProvider | NoOpTracerProvider)
            self._tracer = None if is_empty else provider.get_tracer("taskharbor", __version__)
            self._provider = provider
        return self._tracer

    def enqueue(self, jobs: Sequence[NewJob]) -> EnqueueSpan:
        """Return the span of an insert of *jobs*, as a context manager for the insert. Its context is added to *jobs*.

        It is a child of the current span or, without one, of the context that all *jobs* have in their metadata.
        """
        return EnqueueSpan(_safely(self._start_enqueue, jobs))

    def _start_enqueue(self, jobs: Sequence[NewJob]) -> Span | None:
        tracer = self._current_tracer()
        if tracer is None or not jobs:
            return None
        queues = {job.queue for job in jobs}
        attributes: Attributes = {
            "messaging.system": "taskharbor",
            "messaging.operation.name": "enqueue",
            "messaging.operation.type": "send",
            **self._server,
        }
        if len(jobs) == 1:
            attributes["messaging.message.id"] = str(jobs[0].id)
        else:
            attributes["messaging.batch.message_count"] = len(jobs)
        name = "enqueue"
        if len(queues) == 1:
            [queue] = queues
            attributes["messaging.destination.name"], name = queue, f"enqueue {queue}"
        parent, links = _origin(jobs)
        span = tracer.start_span(name, context=parent, kind=SpanKind.PRODUCER, attributes=attributes, links=links)
        if (made := span.get_span_context()).is_valid:
            entries = context_entries(_read(made))
            for job in jobs:
                job.use_metadata(with_context(job.metadata, entries))
        return span

    def start_attempt(self, job: Job, worker: str) -> AttemptSpan | None:
        """Start the span of an attempt, and make it the current one of this thread's or asyncio task's context.

        It starts a trace of its own, with a link to the enqueue and one to the attempt before. If the second has had
        as many attempts as get a span, there is none, and the handler's own spans have a parent that is not sampled.
        """
        if (now := time.monotonic()) >= self._renewed_at + 1.0:
            self._renewed_at = now  # first: if the provider raises, it is asked again in a second
            _safely(self._renew)
        if self._tracer is None:
            return None
        self._left -= 1  # without a lock: several threads may exceed the limit a little
        if self._left >= 0:
            return _safely(self._start_attempt, self._tracer, job, worker)
        attach(self._untraced)
        if not self._is_limit_logged:
            self._is_limit_logged = True
            text = "more than %d short attempts in a second: not all of them get a span"
            _LOG.warning(text, MIN_ATTEMPTS_PER_SECOND)
        return None

    def current_context(self) -> Sequence[str] | None:
        """Return ``traceparent`` and ``tracestate`` of the current span, for `in_trace` in another process."""
        if self._tracer is None:
            return None
        current = trace.get_current_span().get_span_context()
        return (read.traceparent, read.state) if current.is_valid and (read := _read(current)) else None

    def _renew(self) -> None:
        """Begin a second: find the global provider, which takes 2 µs while there is none, and allow new spans."""
        self._current_tracer()
        cpu_time, self._cpu_time = time.process_time() - self._cpu_time, time.process_time()
        affordable = min(int(MAX_ATTEMPTS_PER_SECOND * cpu_time), MAX_ATTEMPTS_PER_SECOND)
        self._left = max(MIN_ATTEMPTS_PER_SECOND, affordable)
        nowhere = SpanContext(getrandbits(128) | 1, getrandbits(64) | 1, is_remote=False)
        self._untraced = set_span_in_context(NonRecordingSpan(nowhere), _ROOT)

    def _start_attempt(self, tracer: Tracer, job: Job, worker: str) -> AttemptSpan | None:
        queue, started_at = job.queue, time.time_ns()
        attributes: Attributes = {
            "messaging.system": "taskharbor",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": queue,
            "messaging.message.id": str(job.id),
            "messaging.client.id": worker,
            "taskharbor.task.name": job.type,
            "taskharbor.attempt": job.attempt_count,
            "taskharbor.max_attempts": job.max_attempts,
        }
        if job.processing_started_at is not None:
            waited = job.processing_started_at - job.scheduled_for
            attributes["taskharbor.queue.wait_seconds"] = waited.total_seconds()
        span = tracer.start_span(
            f"process {queue}",
            context=_ROOT,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_attempt_links(job) if job.metadata else (),
            start_time=started_at,
        )
        if not span.get_span_context().is_valid:  # OTEL_SDK_DISABLED
            return None
        attach(set_span_in_context(span))  # never detached: the context ends with the attempt
        return AttemptSpan(span, started_at)

    def end_attempt(
        self,
        started: AttemptSpan,
        outcome: Outcome | None,
        answer: Settled | TaskHarborError | None,
        *,
        seconds: float,
    ) -> None:
        """End the span of an attempt that took *seconds*.

        *outcome* is None, or *answer* is not `Settled`, if the outcome was not recorded.
        """
        _safely(_end_attempt, started, outcome, answer, seconds)


@contextmanager
def parent_attached(context: TraceContext) -> Iterator[None]:
    """Make a span of another process the current one in the block."""
    token = attach(set_span_in_context(NonRecordingSpan(_span_context(context)), _ROOT))
    try:
        yield
    finally:
        detach(token)


class EnqueueSpan:
    """The span of an enqueue: the current span inside a ``with`` block, and ended by it."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span | None) -> None:
        self._span = span
        self._token: Any = None

    def __enter__(self) -> Self:
        if self._span is not None:
            self._token = attach(set_span_in_context(self._span))
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _frames: object) -> None:
        if self._token is not None:
            detach(self._token)
        if self._span is not None:
            _safely(_end_enqueue, self._span, error)

    def stored(self, answers: Sequence[Answer]) -> None:
        """Record what the store has answered."""
        if self._span is not None:
            _safely(_note_answers, self._span, answers)

    def discard(self) -> None:
        """Do not end the span, so that it is not exported: nothing was stored."""
        self._span = None


def _note_answers(span: Span, answers: Sequence[Answer]) -> None:
    if refused := [answer for answer in answers if isinstance(answer, IdempotencyConflict)]:
        _set_error(span, type(refused[0]).__name__, str(refused[0]))
    elif len(answers) == 1 and not isinstance(answers[0], IdempotencyConflict) and answers[0].existed:
        span.set_attributes({"messaging.message.id": str(answers[0].id), "taskharbor.existed": True})


def _end_enqueue(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        _set_error(span, type(error).__qualname__, str(error))
    span.end()


def _end_attempt(
    started: AttemptSpan, outcome: Outcome | None, answer: Settled | TaskHarborError | None, seconds: float
) -> None:
    span, ended_at = started.span, started.started_at + round(seconds * _NANOSECONDS)
    if outcome is None or answer is None or isinstance(answer, Exception):
        error = "LeaseLost" if answer is None or not isinstance(answer, Exception) else type(answer).__name__
        span.set_attribute("taskharbor.outcome", "lost")
        _set_error(span, error, f"outcome not recorded: {answer or 'lease lost'}")
    elif outcome.event is not Event.ACK:
        span.set_attributes({"taskharbor.outcome": outcome.event.value, "taskharbor.status": answer.status.value})
        if outcome.event in _FAILURES:
            _record_failure(span, outcome, ended_at)
    span.end(ended_at)


_FAILURES: Final = frozenset({Event.RETRY, Event.FAIL})


def _record_failure(span: Span, outcome: Outcome, ended_at: int) -> None:
    """Record the failure as the store has it, and not the exception: its texts are bounded, and redacted if asked."""
    failure = outcome.recorded_failure
    if failure is None:
        _set_error(span, _OTHER_ERROR, "")
        return
    if failure.type:
        exception = {
            "exception.type": failure.type,
            "exception.message": failure.message,
            "exception.stacktrace": failure.traceback,
        }
        span.add_event("exception", exception, timestamp=ended_at)
    _set_error(span, failure.type or _OTHER_ERROR, failure.message)


def _set_error(span: Span, error_type: str, description: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR, description)


def _origin(jobs: Sequence[NewJob]) -> tuple[Context | None, list[Link]]:
    """Return the parent of an enqueue's span, and links to the contexts of *jobs* that are not of its trace."""
    current = trace.get_current_span().get_span_context()
    given = {context: None for job in jobs if job.metadata and (context := stored_context(job.metadata))}
    if current.is_valid:
        others = [each for each in map(_span_context, given) if each.trace_id != current.trace_id]
        return None, [Link(each) for each in others]
    if len(given) == 1:
        [parent] = given
        return set_span_in_context(NonRecordingSpan(_span_context(parent)), _ROOT), []
    return _ROOT, [Link(_span_context(each)) for each in given]


def _attempt_links(job: Job) -> list[Link]:
    created, before = stored_context(job.metadata), stored_context(job.metadata, ATTEMPT_TRACEPARENT)
    links = [] if created is None else [Link(_span_context(created))]
    return links if before is None else [*links, Link(_span_context(before), _PREVIOUS_ATTEMPT)]


def _span_context(context: TraceContext) -> SpanContext:
    state = TraceState.from_header([context.state]) if context.state else None
    trace_id, span_id = int(context.trace_id, 16), int(context.span_id, 16)
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(context.flags), trace_state=state)


def _read(context: SpanContext) -> TraceContext:
    state = context.trace_state.to_header() if context.trace_state else ""
    return TraceContext(f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_flags, state)


def _safely(action: Callable[..., T], *arguments: object) -> T | None:
    try:
        return action(*arguments)
    except Exception:  # noqa: BLE001  of the user's samplers and processors: the job must not be affected
        _LOG.exception("tracing failed; the job is not affected")
        return None
