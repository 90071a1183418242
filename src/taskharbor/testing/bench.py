"""Runs one attempt at a time, where it is called: no threads, no timeouts, no heartbeat."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from taskharbor.runtime import ThreadRuntime
from taskharbor.worker.context import HandlerServices
from taskharbor.worker.executor import Executor
from taskharbor.worker.hand import Execution
from taskharbor.worker.middleware import handler

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from datetime import datetime

    from taskharbor.core.model import Claim, Progress
    from taskharbor.core.outcome import Outcome
    from taskharbor.drivers.base import Driver
    from taskharbor.harbor import Harbor
    from taskharbor.runtime import AsyncWork


class InlineExecutor:
    """The executor of a worker, with the tasks of *harbor*, and one attempt in hand."""

    def __init__(self, harbor: Harbor, state: Any) -> None:
        self._driver = harbor.driver
        self._here = _Here(harbor.driver)
        tasks = harbor.tasks.values()
        self._executor = Executor(
            self._here,
            {each: handler(task.handler(), ()) for task in tasks for each in task.types},
            {each: task.retry or harbor.policy for task in tasks for each in task.types},
            services=HandlerServices(harbor.driver, harbor.codec, save=self._note, state=state),
            report=self._report,
        )
        self._hand: Execution | None = None
        self.outcome: Outcome | None = None

    @property
    def is_completed(self) -> bool:
        """Whether the handler settled its job itself."""
        return self._hand is not None and self._hand.is_completed

    def start(self, claim: Claim) -> Coroutine[Any, Any, None] | None:
        """Run a plain attempt to its end; return an async one, to be run by the caller."""
        self.outcome, self._here.work = None, None
        self._hand = Execution(claim, ends_at=inf, times_out_at=None)
        self._executor.start([self._hand])
        return self._here.work

    def _report(self, _hand: Execution, outcome: Outcome | None) -> None:
        self.outcome = outcome

    def _note(self, execution: Execution, progress: Progress) -> None:
        self._driver.save_progress([(execution.claim.lease, progress)])


class _Here(ThreadRuntime):
    """A runtime that does at once what it is asked, and leaves coroutines to the caller."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(sync_threads=1)
        self._driver = driver
        self.work: Coroutine[Any, Any, None] | None = None

    def now(self) -> datetime:
        return self._driver.inspector.now()

    def run_sync(self, work: Callable[[], None]) -> None:
        work()

    def run_async(self, works: Sequence[AsyncWork]) -> list[_Here]:
        [(self.work, _)] = works
        return [self]

    def cancel(self) -> None:
        """Nobody asks for it: there is no timeout, no heartbeat and no shutdown here."""
