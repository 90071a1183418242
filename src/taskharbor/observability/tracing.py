"""Tracing with OpenTelemetry: how it is turned on, and the trace id of a job.

`taskharbor.observability.spans` makes the spans. Nothing here imports OpenTelemetry unless tracing is on.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.trace_context import parse_traceparent, stored_context
from taskharbor.installation import install_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.trace import TracerProvider

    from taskharbor.core.model import JobSummary
    from taskharbor.observability.spans import Spans

    TracingOption = bool | TracerProvider | Spans | None
    """Whether spans are made, or by what; True: by the global provider."""


def trace_id_of(job: JobSummary) -> str | None:
    """Return the id of the trace in which *job* was enqueued, or None if it was enqueued without one.

    It needs no OpenTelemetry: the id is in the job's metadata.
    """
    context = stored_context(job.metadata)
    return None if context is None else context.trace_id


def in_trace(context: Sequence[str] | None) -> AbstractContextManager[None]:
    """Make the span of another process the current one in a block: *context* is that of `Spans.current_context`."""
    parent = None if context is None else parse_traceparent(*context)
    if parent is None:
        return nullcontext()
    from taskharbor.observability.spans import parent_attached  # noqa: PLC0415  needs an optional package

    return parent_attached(parent)


def spans_for(tracing: TracingOption, store: object = None) -> Spans | None:
    """Return what makes the spans of a client or worker of *store*, or None if *tracing* is off.

    Raises `UsageError` if OpenTelemetry is not installed.
    """
    if tracing is None or tracing is False:
        return None
    try:
        from taskharbor.observability.spans import Spans  # noqa: PLC0415  needs an optional package
    except ImportError as error:
        rule = f"needs the package opentelemetry-api; run: {install_command('otel')}"
        raise UsageError(Problem(field="tracing", value="on", rule=rule)) from error
    if isinstance(tracing, Spans):
        return tracing
    return Spans(None if tracing is True else tracing, store=store)
