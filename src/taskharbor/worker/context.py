"""The context that a handler receives, and the writer of its progress."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from operator import index
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.codec import encode_with
from taskharbor.core.errors import Problem, StoreUnavailable, TaskHarborError, UsageError
from taskharbor.core.model import Progress, result_context
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled, Settlement
from taskharbor.core.text import make_storable
from taskharbor.observability.failure_log import STORE

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from taskharbor.core.codec import Codec
    from taskharbor.core.failure import Redact
    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Claim, Job
    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.service import ServiceLoops
    from taskharbor.worker.execution import Execution

WRITE_INTERVAL: Final = timedelta(milliseconds=250)
IDLE_PAUSE: Final = timedelta(seconds=60)
MAX_NOTE_CHARS: Final = 500
MAX_COUNT: Final = 2**63 - 1
MAX_SHOWN_CHARS: Final = 80


class ProgressWriter:
    """Collects the newest progress of each attempt, and saves all in one statement at most every `WRITE_INTERVAL`."""

    def __init__(self, runtime: Runtime, driver: Driver, loops: ServiceLoops) -> None:
        self._driver = driver
        self._loops = loops
        self._lock = runtime.lock()
        self._unsaved: dict[Execution, Progress] = {}
        self._is_scheduled = False  # whether a tick comes without a wake

    def save(self, execution: Execution, progress: Progress) -> None:
        with self._lock:
            self._unsaved[execution] = progress
            is_scheduled, self._is_scheduled = self._is_scheduled, True
        if not is_scheduled:
            self._loops.wake("progress")

    def tick(self) -> timedelta:
        with self._lock:
            unsaved, self._unsaved = self._unsaved, {}
            self._is_scheduled = bool(unsaved)
        if not unsaved:
            return IDLE_PAUSE
        try:
            self._driver.save_progress([(execution.claim.lease, progress) for execution, progress in unsaved.items()])
        except StoreUnavailable as error:
            self._loops.failures.unavailable(STORE, error)
        return WRITE_INTERVAL


class AttemptStopped(Exception):
    """Raised by `Context.raise_if_cancelled` when the attempt must stop. Do not catch it."""


class NotCommitted(Exception):
    """A handler completed its job in a transaction that was then not committed."""

    def __str__(self) -> str:
        return "the handler called complete_in, but its transaction was not committed"


@dataclass(slots=True)
class HandlerServices:
    """The objects that all attempts of a worker share."""

    driver: Driver
    codec: Codec
    save: Callable[[Execution, Progress], None]
    state: Any = None
    redact: Redact | None = None


class Context:
    """Gives a handler its job and lease, reports its progress, and says whether it must stop.

    An attempt must stop when its timeout has passed, its cancel was requested, its lease is lost
    or its worker shuts down. Async handlers are canceled. Sync handlers must check `is_cancelled`,
    because Python cannot stop a thread. A result that is returned after the timeout does not count.
    """

    __slots__ = ("_execution", "_pack", "_services")

    def __init__(self, execution: Execution, services: HandlerServices) -> None:
        self._execution = execution
        self._services = services
        self._pack: Callable[[object], object] | None = None

    @property
    def claim(self) -> Claim:
        """The job and its lease."""
        return self._execution.claim

    @property
    def job(self) -> Job:
        """The running job."""
        return self._execution.claim.job

    @property
    def job_id(self) -> JobId:
        """The id of the job."""
        return self._execution.claim.job.id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._execution.claim.job.attempt_count

    @property
    def deadline(self) -> datetime | None:
        """The store's time at which this attempt times out; None if the job has no timeout."""
        job = self._execution.claim.job
        if job.timeout is None or job.processing_started_at is None:
            return None
        return job.processing_started_at + job.timeout

    @property
    def token(self) -> Token:
        """The fencing token of the lease: no other attempt has or had it."""
        return self._execution.claim.lease.token

    @property
    def state(self) -> Any:
        """The value that the harbor's lifespan yielded: connections, clients, models."""
        return self._services.state

    @property
    def is_cancelled(self) -> bool:
        """Whether the attempt must stop."""
        return self._execution.stop_reason is not None

    def raise_if_cancelled(self) -> None:
        """Raise `AttemptStopped` if the attempt must stop."""
        if self._execution.stop_reason is not None:
            raise AttemptStopped(self._execution.stop_reason.value)

    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Report the progress of the attempt. The call returns immediately.

        The newest progress is saved every 250 ms. Progress that is reported just before the handler
        returns may not be saved.
        """
        try:
            text = make_storable(note[:MAX_NOTE_CHARS], limit=MAX_NOTE_CHARS)
            progress = Progress(_count(done), None if total is None else _count(total), text)
        except (TypeError, OverflowError) as error:  # the store would reject the batch, with the progress of other jobs
            rule = "done and total must be integers of at most 64 bits, and note must be text"
            given = f"called with {_shown(done, total, note)}"
            raise UsageError(Problem(field="progress", value=given, rule=rule)) from error
        self._services.save(self._execution, progress)

    def complete_in(self, connection: Any, *, result: object = None) -> None:
        """Settle the job as succeeded in your own transaction, so that its effects and its completion commit together.

        *connection* is the same as for `Task.using`. Raises `LeaseLost` if this attempt no longer holds
        the job: do not catch it, so that your transaction rolls back. The handler's return value is
        ignored. If the transaction does not commit, the attempt fails.
        """
        from taskharbor.drivers import unwrap  # noqa: PLC0415  few handlers need it

        joined = unwrap.join(self._services.driver, connection)
        self._completed(joined.settle([self._settlement(result)]))

    async def acomplete_in(self, connection: Any, *, result: object = None) -> None:
        """Do the same as `complete_in`, in a transaction of an async connection or session."""
        from taskharbor.drivers import unwrap  # noqa: PLC0415  as above

        joined = await unwrap.ajoin(self._services.driver, connection)
        self._completed(await joined.settle([self._settlement(result)]))

    def use_result_encoder(self, pack: Callable[[object], object]) -> None:
        """Encode results of `complete_in` in the same way as the task's return value."""
        self._pack = pack

    def _settlement(self, result: object) -> Settlement:
        lease = self._execution.claim.lease
        packed = result if self._pack is None else self._pack(result)
        data = (
            None if packed is None else encode_with(self._services.codec, packed, context=result_context(lease.job_id))
        )
        return Settlement(lease, Outcome.ack(data))

    def _completed(self, answers: list[Settled | TaskHarborError]) -> None:
        [answer] = answers
        if not isinstance(answer, Settled):
            raise answer
        self._execution.is_completed = True


def _count(value: int) -> int:
    number = index(value)
    if not -MAX_COUNT - 1 <= number <= MAX_COUNT:
        raise OverflowError
    return number


def _shown(*values: object) -> str:
    try:
        return repr(values)[:MAX_SHOWN_CHARS]
    except Exception:  # noqa: BLE001  an integer of thousands of digits, or a user's own __repr__
        return ", ".join(type(value).__name__ for value in values)
