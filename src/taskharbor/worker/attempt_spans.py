"""The spans of a worker's attempts: begun before the handler, ended when the outcome is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.core.errors import JobNotInflight
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled
from taskharbor.core.states import Event, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.observability.spans import Spans
    from taskharbor.worker.execution import Execution
    from taskharbor.worker.executor import OutcomeSink


class AttemptSpans:
    """Begins and ends the spans of the attempts of *worker*. Without tracing, a worker has none of these."""

    def __init__(self, spans: Spans, worker: str) -> None:
        self._spans = spans
        self._worker = worker

    def begin(self, execution: Execution) -> None:
        """Start a span, and make it current. Call it in the context in which the handler will run."""
        execution.span = self._spans.start_attempt(execution.claim.job, self._worker)

    def begin_elsewhere(self, execution: Execution) -> Sequence[str] | None:
        """Start a span as `begin` does; return the trace context for the process in which the handler will run."""
        self.begin(execution)
        return self._spans.current_context()

    def recorded(
        self, ended: Sequence[tuple[Execution, Outcome | None]], answers: Sequence[Settled | TaskHarborError | None]
    ) -> None:
        """End the spans of attempts whose outcomes were committed or refused. They end with their handlers."""
        for (execution, outcome), answer in zip(ended, answers, strict=True):
            if execution.span is not None:
                if execution.is_completed and isinstance(answer, JobNotInflight):
                    # The handler committed it in its own transaction.
                    outcome, answer = Outcome.ack(), Settled(execution.claim.job.id, Status.SUCCEEDED)  # noqa: PLW2901
                self._spans.end_attempt(execution.span, outcome, answer, seconds=execution.seconds or 0.0)
                execution.span = None


class TracedOutcomes:
    """Adds the trace context of the attempt to an outcome that another attempt may follow."""

    def __init__(self, recorder: OutcomeSink) -> None:
        self._recorder = recorder

    def put(self, execution: Execution, outcome: Outcome | None) -> None:
        if outcome is not None and outcome.event is not Event.ACK and execution.span is not None:
            traceparent = execution.span.traceparent
            outcome = outcome if traceparent is None else outcome.traced(traceparent)
        self._recorder.put(execution, outcome)
