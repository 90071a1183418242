"""Asking the store for jobs, and putting what it gave into hands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from taskharbor.core.model import Claim
from taskharbor.worker.execution import Execution

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.results import Refused
    from taskharbor.drivers.base import Driver
    from taskharbor.janitor import ClockGuard
    from taskharbor.runtime import Runtime
    from taskharbor.worker.config import WorkerConfig
    from taskharbor.worker.execution import ExecutionSlots
    from taskharbor.worker.executor import Executor
    from taskharbor.worker.handlers import HandlerRegistry
    from taskharbor.worker.hooks import AttemptHooks
    from taskharbor.worker.message_acks import ReceivedMessage
    from taskharbor.worker.stop_request import StopRequest

    Answer = TypeVar("Answer", bound=Claim | Refused)

RECLAIM_INTERVAL_SECONDS: Final = 0.05
"""Seconds after a look for ended leases in which a job that is due does not wait for another one."""


@dataclass(frozen=True, slots=True)
class PendingClaim:
    """A call for jobs: of which queue, with how much room, since when, and for which messages."""

    queue: str
    room: int
    asked_at: float
    received: Mapping[JobId, ReceivedMessage] = field(default_factory=dict)


class Claimer:
    """Takes jobs into room that was set aside for them.

    A call whose reply was lost may have taken some. It keeps its room, until they are read
    back by the call's token: whoever uses this does so before anything else is taken.
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
        self._config = config
        self._lease_seconds = config.lease.total_seconds()
        self._lost: dict[Token, PendingClaim] = {}
        self._looks_at: dict[str, float] = {}

    @property
    def has_no_pending(self) -> bool:
        """Whether every call was answered."""
        return not self._lost

    def reserve(self, queue: str, room: int, *, overdue_only: bool = False) -> list[Claim]:
        """Lease due jobs of *queue*, as many as there are free slots; with *overdue_only* only overdue ones."""
        now, may_look = self._runtime.monotonic(), self._guard.may_reclaim()
        looks = may_look and now >= self._looks_at.get(queue, 0.0)
        claims = self._reserve(queue, room, overdue_only=overdue_only, reclaim=looks)
        if not claims and may_look and not looks and (room := self._slots.acquire(queue, room)):
            looks = True
            claims = self._reserve(queue, room, overdue_only=overdue_only, reclaim=True)
        if looks and len(claims) < room:
            self._looks_at[queue] = now + RECLAIM_INTERVAL_SECONDS
        return claims

    def _reserve(self, queue: str, room: int, *, overdue_only: bool, reclaim: bool) -> list[Claim]:
        def ask(token: Token) -> list[Claim]:
            return self._driver.reserve(
                queue,
                token=token,
                worker=self._config.worker,
                lease=self._config.lease,
                limit=room,
                overdue_after=self._config.overdue_after,
                overdue_only=overdue_only,
                types=self._handlers.types,
                unhandled_after=self._config.unhandled_after,
                reclaim=reclaim,
            )

        return self._ask(ask, queue, room, {})

    def claim(self, queue: str, room: int, received: Sequence[ReceivedMessage]) -> list[Claim | Refused]:
        """Take the jobs that these messages ring for, in one statement."""

        def ask(token: Token) -> list[Claim | Refused]:
            return self._driver.claim(
                [each.message.job_id for each in received],
                queue=queue,
                token=token,
                worker=self._config.worker,
                lease=self._config.lease,
                types=self._handlers.types,
                unhandled_after=self._config.unhandled_after,
                reclaim=self._guard.may_reclaim(),
            )

        # Of a job that came twice the first one is claimed.
        return self._ask(ask, queue, room, {each.message.job_id: each for each in reversed(received)})

    def _ask(
        self, ask: Callable[[Token], list[Answer]], queue: str, room: int, received: Mapping[JobId, ReceivedMessage]
    ) -> list[Answer]:
        token = self._runtime.token()
        asked_at = self._runtime.monotonic()
        try:
            answers = ask(token)
        except Exception:  # whatever it was, the call may have taken effect; its token is not used again
            self._lost[token] = PendingClaim(queue, room, asked_at, received)
            raise
        except BaseException:
            self._slots.fill(queue, room, [])
            raise
        self._take(PendingClaim(queue, room, asked_at, received), [each for each in answers if isinstance(each, Claim)])
        return answers

    def read_back(self) -> list[ReceivedMessage]:
        """Find out what calls took whose reply was lost; return the messages that got no job."""
        if not self._lost:
            return []
        held = self._driver.read_back(list(self._lost))
        unclaimed: list[ReceivedMessage] = []
        while self._lost:
            token, lost = self._lost.popitem()
            claims = [claim for claim in held if claim.lease.token == token]
            unclaimed += [each for each in lost.received.values() if each.message.job_id not in _ids(claims)]
            self._take(lost, claims)
        return unclaimed

    def drop_expired(self) -> None:
        """Let go of calls that hold nothing any more, whatever they took: the leases have ended."""
        over = self._runtime.monotonic() - self._lease_seconds
        self._lost = {token: lost for token, lost in self._lost.items() if lost.asked_at > over}

    def _take(self, call: PendingClaim, claims: Sequence[Claim]) -> None:
        ends_at = call.asked_at + self._lease_seconds - self._config.lease_margin_seconds
        now = self._runtime.monotonic()
        executions = [self._execution(claim, call, now=now, ends_at=ends_at) for claim in claims]
        self._slots.mark_lost([claim.job.id for claim in claims])
        self._slots.fill(call.queue, call.room, executions)
        if executions:
            self._start(executions)

    def _start(self, executions: list[Execution]) -> None:
        self._hooks.claimed(executions)
        if self._stop.is_set:  # they were requested before the stop, and arrived after it
            for execution in executions:
                self._executor.release(execution)
            return
        self._executor.start(executions)
        self._hooks.started(executions)

    def _execution(self, claim: Claim, call: PendingClaim, *, now: float, ends_at: float) -> Execution:
        timeout = claim.job.timeout
        if self._config.codec is not None:
            claim = Claim(replace(claim.job, codec=self._config.codec), claim.lease)
        return Execution(
            claim,
            ends_at=ends_at,
            times_out_at=None if timeout is None else now + timeout.total_seconds(),
            queue=call.queue,
            received=call.received.get(claim.job.id) if call.received else None,
        )


def _ids(claims: Sequence[Claim]) -> set[JobId]:
    return {claim.job.id for claim in claims}
