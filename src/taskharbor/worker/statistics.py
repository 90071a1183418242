"""Adds up how long attempts waited and ran, and how they ended, for the worker heartbeat to hand over."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import JobNotInflight
from taskharbor.core.results import Settled
from taskharbor.core.states import Event
from taskharbor.core.statistics import BUCKETS, MINUTE, SUCCEEDED, Metric, StatisticTally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.outcome import Outcome
    from taskharbor.runtime import Runtime
    from taskharbor.worker.execution import Execution

_ACKED: Final = Event.ACK  # the lookup of an enum member takes as long as the rest of a loop
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST: Final = 1 << (BUCKETS - 1)
"""In milliseconds: this and all longer durations are in the last bucket."""
_KEYS: Final = tuple(f"{bucket:02}" for bucket in range(BUCKETS))


class Measured:
    """The attempts of one minute, queue and type."""

    __slots__ = ("outcomes", "runs", "successes", "waits")

    def __init__(self) -> None:
        self.waits, self.runs, self.successes = [0] * BUCKETS, [0] * BUCKETS, 0
        self.outcomes: Counter[str] = Counter()


class AttemptStatistics:
    """Counts recorded attempts in this process: a call of the store for each would slow settling down.

    Times are those of the store's clock, as far as a worker knows them: an attempt ends when it began plus the time
    that its handler took. A worker that is killed loses what it has counted since its last heartbeat.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._measured: dict[tuple[int, str, str], Measured] = {}

    def count(
        self, ended: Sequence[tuple[Execution, Outcome | None]], answers: Sequence[Settled | TaskHarborError | None]
    ) -> None:
        """Count the attempts whose outcomes are committed. Those of one call ended at about the same time.

        One loop without calls, which would take longer than the rest: a worker records thousands in a second.
        """
        minute, last_queue, last_type = -1, "", ""
        measured = Measured()
        waits, runs = measured.waits, measured.runs
        with self._lock:
            for (execution, outcome), answer in zip(ended, answers, strict=True):
                if type(answer) is Settled and outcome is not None:
                    is_success = outcome.event is _ACKED
                else:  # or the handler committed it in its own transaction
                    is_success = execution.is_completed and isinstance(answer, JobNotInflight)
                    if not is_success:
                        continue
                job = execution.claim.job
                due, began_at = job.scheduled_for, execution.began_at
                started = job.processing_started_at or due  # a claimed job has started
                if job.type != last_type or job.queue != last_queue:
                    last_queue, last_type = job.queue, job.type
                    if minute < 0:
                        minute = int((started - _EPOCH).total_seconds() + (execution.seconds or 0.0)) // 60
                    key = (minute, last_queue, last_type)
                    measured = self._measured.get(key) or self._measured.setdefault(key, Measured())
                    waits, runs = measured.waits, measured.runs
                waited = started - due
                if not waited.days:
                    milliseconds = waited.seconds * 1_000 + waited.microseconds // 1_000
                    waits[milliseconds.bit_length() if milliseconds < _LONGEST else -1] += 1
                else:  # for a day, or less than zero after a clock was set back
                    waits[-1 if waited.days > 0 else 0] += 1
                if began_at is not None:
                    milliseconds = int((execution.ended_at - began_at) * 1_000)
                    runs[milliseconds.bit_length() if milliseconds < _LONGEST else -1] += 1
                if is_success:
                    measured.successes += 1
                elif outcome is not None:
                    measured.outcomes[outcome.attempt_outcome.value] += 1

    def take(self) -> list[StatisticTally]:
        """Return what was counted since the last call."""
        with self._lock:
            measured, self._measured = self._measured, {}
        return [
            StatisticTally(_EPOCH + minute * MINUTE, metric, queue, type_, key, count)
            for (minute, queue, type_), each in measured.items()
            for metric, key, count in _entries(each)
        ]


def _entries(measured: Measured) -> Iterator[tuple[Metric, str, int]]:
    spans: Iterable[tuple[Metric, list[int]]] = ((Metric.WAIT, measured.waits), (Metric.RUN, measured.runs))
    for metric, counts in spans:
        for key, count in zip(_KEYS, counts, strict=True):
            if count:
                yield metric, key, count
    if measured.successes:
        yield Metric.ATTEMPTS, SUCCEEDED, measured.successes
    for outcome, count in measured.outcomes.items():
        yield Metric.ATTEMPTS, outcome, count
