"""Spans in memory: a tracer provider for a test, and what it has exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.sampling import Sampler


class Traces:
    """A provider that keeps all spans in memory. It is not the global one."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        """The ended spans, in the order of their starts."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


def traceparent(span: ReadableSpan) -> str:
    """Return the context of *span* as it is stored with a job."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def links(span: ReadableSpan) -> list[str]:
    """Return the contexts that *span* links to."""
    return [
        f"00-{each.context.trace_id:032x}-{each.context.span_id:016x}-{each.context.trace_flags:02x}"
        for each in span.links
    ]


def is_child(span: ReadableSpan, of: ReadableSpan) -> bool:
    context = of.get_span_context()
    assert context is not None
    return span.parent is not None and (span.parent.trace_id, span.parent.span_id) == (
        context.trace_id,
        context.span_id,
    )
