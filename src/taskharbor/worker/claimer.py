"""Claims jobs from the store and starts their executions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from taskharbor.core.model import Claim
from taskharbor.observability.failure_log import STORE
from taskharbor.worker.execution import Execution

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.results import Refused
    from taskharbor.drivers.base import Driver
    from taskharbor.janitor import ClockGuard
    from taskharbor.observability.failure_log import FailureLog
    from taskharbor.runtime import Runtime
    from taskharbor.worker.config import WorkerConfig
    from taskharbor.worker.execution import ExecutionSlots
    from taskharbor.worker.executor import Executor
    from taskharbor.worker.handlers import HandlerRegistry
    from taskharbor.worker.hooks import AttemptHooks
    from taskharbor.worker.message_acks import ReceivedJob
    from taskharbor.worker.stop_request import StopRequest

    Answer = TypeVar("Answer", bound=Claim | Refused)

RECLAIM_INTERVAL_SECONDS: Final = 0.25
"""After a scan for expired leases, claims from the same queue skip it for this long unless they find no due job.

A claim that finds a due job and scans starts the job only after the scan. With a poll between two jobs, none does.
After a claim that found jobs, those of the next one start before the scan: past the dead index entries of a drain
under an old snapshot it takes 10 ms.
"""

SLOW_CLAIM_SECONDS: Final = 3.0
"""If a claim takes longer, the worker is not ready. A claim takes milliseconds."""


@dataclass(frozen=True, slots=True)
class PendingClaim:
    """A claim whose reply has not been processed: its queue, acquired slots, start time and messages."""

    queue: str
    slots: int
    requested_at: float
    received: Mapping[JobId, ReceivedJob] = field(default_factory=dict)


class Claimer:
    """Claims jobs for slots that the source has acquired.

    A claim whose reply was lost may have taken effect. It keeps its slots until its jobs are read
    back by its token. Sources call `read_back` before they claim anything else.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        slots: ExecutionSlots,
        *,
        executor: Executor,
        hooks: AttemptHooks,
        guard: ClockGuard,
        stop: StopRequest,
        handlers: HandlerRegistry,
        failures: FailureLog,
        config: WorkerConfig,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._slots = slots
        self._executor = executor
        self._hooks = hooks
        self._guard = guard
        self._stop = stop
        self._handlers = handlers
        self.failures: Final = failures
        self._config = config
        self._lease_seconds = config.lease.total_seconds()
        self._pending: dict[Token, PendingClaim] = {}
        self._next_reclaim_at: dict[str, float] = {}
        self._busy: set[str] = set()  # the queues whose last claim found jobs
        self._asked_at: float | None = None
        self._last_succeeded: bool | None = None

    def release_overdue(self) -> None:
        """Release the jobs that were claimed ahead and wait for too long."""
        self._executor.release_overdue()

    @property
    def problem(self) -> str:
        """Why claims do not go through; empty if they do."""
        asked_at = self._asked_at
        if asked_at is not None and self._runtime.monotonic() > asked_at + SLOW_CLAIM_SECONDS:
            return "the store has not answered a claim for too long"
        if self._last_succeeded is None:
            return "no claim has been answered yet"
        return "" if self._last_succeeded else "the last claim failed"

    @property
    def has_no_pending(self) -> bool:
        """Whether no claim waits to be read back."""
        return not self._pending

    def reserve(self, queue: str, slots: int, *, overdue_only: bool = False) -> list[Claim]:
        """Lease up to *slots* due jobs of *queue*; with *overdue_only*, only overdue ones."""
        now, may_reclaim = self._runtime.monotonic(), self._guard.may_reclaim()
        is_reclaim_due = now >= self._next_reclaim_at.get(queue, 0.0)
        reclaim = may_reclaim and is_reclaim_due and queue not in self._busy
        claims = self._reserve(queue, slots, overdue_only=overdue_only, reclaim=reclaim)
        left = slots - len(claims)
        if may_reclaim and not reclaim and (is_reclaim_due or not claims) and (left := self._acquire(queue, left)):
            reclaim = True
            claims = [*claims, *self._reserve(queue, left, overdue_only=overdue_only, reclaim=True)]
        if reclaim and len(claims) < slots:
            self._next_reclaim_at[queue] = now + RECLAIM_INTERVAL_SECONDS
        (self._busy.add if claims else self._busy.discard)(queue)
        return claims

    def _acquire(self, queue: str, slots: int) -> int:
        return self._slots.acquire(queue, slots) if slots else 0

    def _reserve(self, queue: str, slots: int, *, overdue_only: bool, reclaim: bool) -> list[Claim]:
        def call_driver(token: Token) -> list[Claim]:
            return self._driver.reserve(
                queue,
                token=token,
                worker=self._config.worker,
                lease=self._config.lease,
                limit=slots,
                overdue_after=self._config.overdue_after,
                overdue_only=overdue_only,
                types=self._handlers.types,
                unhandled_after=self._config.unhandled_after,
                reclaim=reclaim,
            )

        return self._claim(call_driver, queue, slots, {})

    def claim(self, queue: str, slots: int, received: Sequence[ReceivedJob]) -> list[Claim | Refused]:
        """Claim these jobs, which messages name, in one statement."""

        def call_driver(token: Token) -> list[Claim | Refused]:
            return self._driver.claim(
                [each.job_id for each in received],
                queue=queue,
                token=token,
                worker=self._config.worker,
                lease=self._config.lease,
                types=self._handlers.types,
                unhandled_after=self._config.unhandled_after,
                reclaim=self._guard.may_reclaim(),
            )

        # If two messages name one job, the first message is the one that claimed it.
        return self._claim(call_driver, queue, slots, {each.job_id: each for each in reversed(received)})

    def _claim(
        self,
        call_driver: Callable[[Token], list[Answer]],
        queue: str,
        slots: int,
        received: Mapping[JobId, ReceivedJob],
    ) -> list[Answer]:
        token = self._runtime.token()
        requested_at = self._asked_at = self._runtime.monotonic()
        try:
            answers = call_driver(token)
        except Exception:  # the claim may have taken effect; its token is not used again
            self._last_succeeded = False
            self._pending[token] = PendingClaim(queue, slots, requested_at, received)
            raise
        except BaseException:
            self._slots.fill(queue, slots, [])
            raise
        finally:
            self._asked_at = None
        self._last_succeeded = True
        self.failures.available(STORE)
        self._accept(
            PendingClaim(queue, slots, requested_at, received), [each for each in answers if isinstance(each, Claim)]
        )
        return answers

    def read_back(self) -> list[ReceivedJob]:
        """Start the jobs of claims whose reply was lost; return the jobs of messages that were not claimed."""
        if not self._pending:
            return []
        held = self._driver.read_back(list(self._pending))
        unclaimed: list[ReceivedJob] = []
        while self._pending:
            token, call = self._pending.popitem()
            claims = [claim for claim in held if claim.lease.token == token]
            unclaimed += [each for each in call.received.values() if each.job_id not in _job_ids(claims)]
            self._accept(call, claims)
        return unclaimed

    def drop_expired(self) -> None:
        """Drop claims that are older than a lease: whatever they claimed has expired."""
        oldest = self._runtime.monotonic() - self._lease_seconds
        self._pending = {token: call for token, call in self._pending.items() if call.requested_at > oldest}

    def _accept(self, call: PendingClaim, claims: Sequence[Claim]) -> None:
        ends_at = call.requested_at + self._lease_seconds - self._config.lease_margin_seconds
        now = self._runtime.monotonic()
        executions = [self._execution(claim, call, now=now, ends_at=ends_at) for claim in claims]
        self._slots.fill(call.queue, call.slots, executions)
        if executions:
            self._start(call.queue, claims, executions)

    def _start(self, queue: str, claims: Sequence[Claim], executions: list[Execution]) -> None:
        self._hooks.claimed(queue, claims)
        if self._stop.is_set:  # claimed before the stop, arrived after it
            for execution in executions:
                self._executor.release(execution)
            return
        self._executor.start(executions)
        self._hooks.started(executions)

    def _execution(self, claim: Claim, call: PendingClaim, *, now: float, ends_at: float) -> Execution:
        timeout = claim.job.timeout
        if self._config.codec is not None:
            claim.job.use_codec(self._config.codec)
        return Execution(
            claim,
            ends_at=ends_at,
            times_out_at=None if timeout is None else now + timeout.total_seconds(),
            queue=call.queue,
            received=call.received.get(claim.job.id) if call.received else None,
            claimed_at=now,
        )


def _job_ids(claims: Sequence[Claim]) -> set[JobId]:
    return {claim.job.id for claim in claims}
