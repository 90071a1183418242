"""What a handler knows of its attempt, beside the job."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Claim
    from taskharbor.worker.hand import Hand


class Stopped(Exception):
    """Raised by `Context.raise_if_cancelled`: the attempt shall end now. Let it pass."""


class Running(NamedTuple):
    """Which attempt this thread or task runs: for the user's own logs, and to fence effects."""

    job_id: JobId
    attempt: int
    token: Token


running: Final[ContextVar[Running | None]] = ContextVar("taskharbor_running", default=None)


class Context:
    """Tells a handler whether to go on.

    An attempt is asked to stop when its timeout has passed, its cancel was requested, its
    lease is lost or its worker shuts down. Async handlers are cancelled; plain ones look
    here, because no thread can be stopped from outside.
    """

    __slots__ = ("_hand",)

    def __init__(self, hand: Hand) -> None:
        self._hand = hand

    @property
    def claim(self) -> Claim:
        """The job and the lease under which it runs."""
        return self._hand.claim

    @property
    def is_cancelled(self) -> bool:
        """Whether the attempt shall end."""
        return self._hand.why is not None

    def raise_if_cancelled(self) -> None:
        """Raise `Stopped` if the attempt shall end."""
        if self._hand.why is not None:
            raise Stopped(self._hand.why.value)
