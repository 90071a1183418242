"""Saves the captured log lines of attempts after their outcomes are recorded."""

from __future__ import annotations

import logging
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import JobNotInflight, SchemaOutOfDate, StoreUnavailable
from taskharbor.core.log_lines import KEPT_ATTEMPTS, AttemptLines
from taskharbor.core.results import Settled
from taskharbor.observability.failure_log import STORE
from taskharbor.observability.log_capture import CaptureHandler, LogCapture
from taskharbor.runtime import NO_PAUSE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.failure import Redact
    from taskharbor.core.outcome import Outcome
    from taskharbor.drivers.base import Driver
    from taskharbor.service import ServiceLoops
    from taskharbor.worker.execution import Execution

_LOG: Final = logging.getLogger("taskharbor.worker")
LOG_BATCH: Final = 50
"""The attempts whose lines are saved in one call: at most 3 MB."""
MAX_PENDING_LOGS: Final = 500
"""The attempts whose lines wait for a store that is unavailable: at most 33 MB. The oldest are dropped."""
IDLE_PAUSE: Final = timedelta(seconds=60)
RETRY_PAUSE: Final = timedelta(seconds=1)
_NOT_SAVED: Final = "captured log lines not saved, store unavailable; attempts: %d"


class LogWriter:
    """Captures the log lines of attempts, and saves them in a loop of its own: no outcome waits for them.

    It is the best effort: the lines of an attempt whose outcome is not recorded, or whose worker is killed, are lost.
    Jobs without capture do not pass through it.
    """

    def __init__(self, driver: Driver, loops: ServiceLoops, redact: Redact | None) -> None:
        self._driver = driver
        self._loops = loops
        self._redact = redact
        self._handler: CaptureHandler | None = None
        self._running: dict[Execution, LogCapture] = {}
        self._pending: deque[tuple[Execution, LogCapture]] = deque()
        self._unsaved: list[AttemptLines] = []
        self._is_failing = False
        self._dropped = 0
        self.is_on = False

    def start(self) -> None:
        """Begin to capture: the handler is added to the root logger."""
        self.is_on = True
        self._handler = CaptureHandler()
        self._loops.add("log-lines", self.tick)
        logging.getLogger().addHandler(self._handler)

    def close(self) -> None:
        """Remove the handler from the root logger, and log whether lines could not be saved."""
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
        if lost := self._dropped + len(self._pending) + len(self._unsaved):
            _LOG.warning(_NOT_SAVED, lost)

    @property
    def is_done(self) -> bool:
        """Whether no lines wait to be saved. Those that wait for a store that is unavailable do not count."""
        return not self.is_on or self._is_failing or not (self._running or self._pending or self._unsaved)

    def capture(self, execution: Execution, level: int) -> LogCapture | None:
        """Return the capture of an attempt that begins, from *level* on; None if nothing is captured."""
        if self._handler is None or not self.is_on:
            return None
        capture = self._running[execution] = LogCapture(self._handler, level)
        return capture

    def recorded(
        self, ended: Sequence[tuple[Execution, Outcome | None]], answers: Sequence[Settled | TaskHarborError | None]
    ) -> None:
        """Take the captures of attempts whose outcomes were recorded or refused; drop those that were refused."""
        is_idle = not self._pending
        for (execution, _), answer in zip(ended, answers, strict=True):
            if execution not in self._running:
                continue
            is_completed = execution.is_completed and isinstance(answer, JobNotInflight)
            if isinstance(answer, Settled) or is_completed:
                self._pending.append((execution, self._running[execution]))
            del self._running[execution]  # last: a shutdown must see it here or there
        while len(self._pending) > MAX_PENDING_LOGS:
            self._pending.popleft()
            self._dropped += 1
        if is_idle and self._pending:
            self._loops.wake("log-lines")

    def tick(self) -> timedelta:
        """Save the lines of the attempts that have ended."""
        logs = self._unsaved or self._next_batch()
        if not logs:
            return IDLE_PAUSE
        self._unsaved = logs
        try:
            self._driver.attempt_logs.save(logs, keep=KEPT_ATTEMPTS)
        except SchemaOutOfDate as error:
            _LOG.warning("log lines are not captured: %s", error)
            self.is_on = False
            self._pending.clear()
        except StoreUnavailable as error:
            self._is_failing = True
            self._loops.failures.unavailable(STORE, error)
            return RETRY_PAUSE
        except Exception as error:  # noqa: BLE001  lines that the store cannot hold must not block those after them
            self._loops.failures.unexpected(f"saving captured log lines of {len(logs)} attempts, which are lost", error)
        self._unsaved = []
        self._is_failing = False
        if self._dropped:
            _LOG.warning(_NOT_SAVED, self._dropped)
            self._dropped = 0
        return NO_PAUSE if self._pending else IDLE_PAUSE

    def _next_batch(self) -> list[AttemptLines]:
        """Remove the next batch. A job is in it once: the second of two attempts waits for the next batch."""
        batch: dict[int, AttemptLines] = {}
        while self._pending and len(batch) < LOG_BATCH:
            execution, capture = self._pending[0]
            job = execution.claim.job
            if job.id.int in batch:
                break
            self._pending.popleft()
            lines, dropped = capture.take(self._redact)
            if lines or dropped:
                batch[job.id.int] = AttemptLines(
                    job_id=job.id,
                    token=execution.claim.lease.token,
                    attempt=job.attempt_count,
                    worker_id=job.worker_id,
                    dropped=dropped,
                    lines=lines,
                )
        return [*batch.values()]
