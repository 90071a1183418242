"""Asking the store for jobs, and putting what it gave into hands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from taskharbor.core.model import Claim
from taskharbor.worker.hand import Hand

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from taskharbor.core.answers import Refused
    from taskharbor.core.codec import Codec
    from taskharbor.core.ids import JobId, Token
    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.worker.hand import Hands
    from taskharbor.worker.messages import Received

    Answer = TypeVar("Answer", bound=Claim | Refused)

LOOK: Final = 0.05
"""Seconds after a look for ended leases in which a job that is due does not wait for another one."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call for jobs: of which queue, with how much room, since when, and for which messages."""

    queue: str
    room: int
    asked_at: float
    received: Mapping[JobId, Received] = field(default_factory=dict)


class Taking:
    """Takes jobs into room that was set aside for them.

    A call whose reply was lost may have taken some. It keeps its room, until they are read
    back by the call's token: whoever uses this does so before anything else is taken.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        hands: Hands,
        *,
        worker: str,
        lease: timedelta,
        margin: float,
        patience: timedelta,
        types: Callable[[], frozenset[str] | None],
        may_reclaim: Callable[[], bool],
        start: Callable[[list[Hand]], None],
        codec: Codec | None = None,
        unhandled_after: timedelta | None = None,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._hands = hands
        self._worker = worker
        self._lease = lease
        self._margin = margin
        self._patience = patience
        self._types = types
        self._unhandled_after = unhandled_after
        self._may_reclaim = may_reclaim
        self._start = start
        self._codec = codec
        self._lost: dict[Token, Call] = {}
        self._looks_at: dict[str, float] = {}

    @property
    def is_sure(self) -> bool:
        """Whether every call was answered."""
        return not self._lost

    def reserve(self, queue: str, room: int, *, overdue: bool = False) -> list[Claim]:
        """Take due jobs of *queue*, as many as there is room for; with *overdue* only those that wait for too long."""
        now, may_look = self._runtime.monotonic(), self._may_reclaim()
        looks = may_look and now >= self._looks_at.get(queue, 0.0)
        claims = self._reserve(queue, room, overdue=overdue, reclaim=looks)
        if not claims and may_look and not looks and (room := self._hands.take_room(queue, room)):
            looks = True
            claims = self._reserve(queue, room, overdue=overdue, reclaim=True)
        if looks and len(claims) < room:
            self._looks_at[queue] = now + LOOK
        return claims

    def _reserve(self, queue: str, room: int, *, overdue: bool, reclaim: bool) -> list[Claim]:
        def ask(token: Token) -> list[Claim]:
            return self._driver.reserve(
                queue,
                token=token,
                worker=self._worker,
                lease=self._lease,
                limit=room,
                patience=self._patience,
                overdue=overdue,
                types=self._types(),
                unhandled_after=self._unhandled_after,
                reclaim=reclaim,
            )

        return self._ask(ask, queue, room, {})

    def claim(self, queue: str, room: int, received: Sequence[Received]) -> list[Claim | Refused]:
        """Take the jobs that these messages ring for, in one statement."""

        def ask(token: Token) -> list[Claim | Refused]:
            return self._driver.claim(
                [each.message.job_id for each in received],
                queue=queue,
                token=token,
                worker=self._worker,
                lease=self._lease,
                types=self._types(),
                unhandled_after=self._unhandled_after,
                reclaim=self._may_reclaim(),
            )

        # Of a job that came twice the first one is claimed.
        return self._ask(ask, queue, room, {each.message.job_id: each for each in reversed(received)})

    def _ask(
        self, ask: Callable[[Token], list[Answer]], queue: str, room: int, received: Mapping[JobId, Received]
    ) -> list[Answer]:
        token = self._runtime.token()
        asked_at = self._runtime.monotonic()
        try:
            answers = ask(token)
        except Exception:  # whatever it was, the call may have taken effect; its token is not used again
            self._lost[token] = Call(queue, room, asked_at, received)
            raise
        except BaseException:
            self._hands.fill_room(queue, room, [])
            raise
        self._take(Call(queue, room, asked_at, received), [each for each in answers if isinstance(each, Claim)])
        return answers

    def read_back(self) -> list[Received]:
        """Find out what calls took whose reply was lost; return the messages that got no job."""
        if not self._lost:
            return []
        held = self._driver.read_back(list(self._lost))
        unclaimed: list[Received] = []
        while self._lost:
            token, lost = self._lost.popitem()
            claims = [claim for claim in held if claim.lease.token == token]
            unclaimed += [each for each in lost.received.values() if each.message.job_id not in _ids(claims)]
            self._take(lost, claims)
        return unclaimed

    def forget_what_is_over(self) -> None:
        """Let go of calls that hold nothing any more, whatever they took: the leases have ended."""
        over = self._runtime.monotonic() - self._lease.total_seconds()
        self._lost = {token: lost for token, lost in self._lost.items() if lost.asked_at > over}

    def _take(self, call: Call, claims: Sequence[Claim]) -> None:
        ends_at = call.asked_at + self._lease.total_seconds() - self._margin
        now = self._runtime.monotonic()
        hands = [self._hand(claim, call, now=now, ends_at=ends_at) for claim in claims]
        self._hands.lose([claim.job.id for claim in claims])
        self._hands.fill_room(call.queue, call.room, hands)
        if hands:
            self._start(hands)

    def _hand(self, claim: Claim, call: Call, *, now: float, ends_at: float) -> Hand:
        timeout = claim.job.timeout
        if self._codec is not None:
            claim = Claim(replace(claim.job, codec=self._codec), claim.lease)
        return Hand(
            claim,
            ends_at=ends_at,
            times_out_at=None if timeout is None else now + timeout.total_seconds(),
            queue=call.queue,
            received=call.received.get(claim.job.id) if call.received else None,
        )


def _ids(claims: Sequence[Claim]) -> set[JobId]:
    return {claim.job.id for claim in claims}
