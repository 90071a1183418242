"""The span of an isolated attempt is the current one in its child."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from taskharbor.observability import spans as module
from taskharbor.observability.spans import Spans
from tests.support import isolated_app as app

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.support.isolation_rig import IsolationRig


@pytest.fixture
def exported(rig: IsolationRig, monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    assert rig.folder.exists()
    monkeypatch.setattr(app.harbor, "spans", Spans(provider))
    return exporter


def attempts(exporter: InMemorySpanExporter) -> dict[str, list[Any]]:
    """Return the trace and the id of the span of each attempt, by the id of its job."""
    spans: Sequence[ReadableSpan] = [each for each in exporter.get_finished_spans() if each.name == "process default"]
    return {
        str((each.attributes or {})["messaging.message.id"]): [f"{context.trace_id:x}", f"{context.span_id:x}", True]
        for each in spans
        if (context := each.get_span_context()) is not None
    }


@pytest.mark.parametrize("task", [app.parent_of_span, app.parent_of_async_span], ids=["sync", "async"])
def test_spans_of_a_child_belong_to_the_span_of_their_attempt(
    rig: IsolationRig, exported: InMemorySpanExporter, task: Any
) -> None:
    handles = [task.enqueue() for _ in range(20)]

    rig.drain(concurrency=1)

    assert {str(handle.id): handle.result() for handle in handles} == attempts(exported)
    assert len(attempts(exported)) == 20


def test_log_lines_of_a_child_are_logged_within_the_span_of_their_attempt(
    rig: IsolationRig, exported: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        if record.name == "shop.images":
            seen.append(f"{trace.get_current_span().get_span_context().span_id:x}")
        return True

    caplog.handler.addFilter(note)
    handle = app.parent_of_span.enqueue()

    rig.drain()
    caplog.handler.removeFilter(note)

    assert seen == [attempts(exported)[str(handle.id)][1]]


def test_an_attempt_without_a_span_has_no_spans_in_its_child(
    rig: IsolationRig, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MIN_ATTEMPTS_PER_SECOND", "MAX_ATTEMPTS_PER_SECOND"):
        monkeypatch.setattr(module, name, 0)
    handle = app.parent_of_span.enqueue()

    rig.drain()

    assert handle.result()[2] is False
    assert attempts(exported) == {}
