"""What a worker with a queue service has besides: its messages, and the events of its dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.core.answers import Settled
from taskharbor.core.messages import Finding
from taskharbor.core.states import Status
from taskharbor.deadletters import Relay, to_queue
from taskharbor.worker.messages import Messages

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.facts import Fact
    from taskharbor.delivery.transport import Transport
    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.worker.hand import Hand


class Mail:
    """Messages and the relay of one worker, and when they have something to do."""

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        transport: Transport,
        *,
        visibility: timedelta,
        wait: timedelta,
        dead_letters: str | None,
        wake: Callable[[str], None],
        tell: Callable[[Fact], None],
    ) -> None:
        self.transport, self.visibility, self.wait = transport, visibility, wait
        self.messages = Messages(
            runtime, driver, transport, visibility=visibility, wake=lambda: wake("messages"), tell=tell
        )
        self.relay = None if dead_letters is None else Relay(driver, to_queue(transport, dead_letters))
        self._wake = wake

    @property
    def ticks(self) -> dict[str, Callable[[], timedelta]]:
        relay = {} if self.relay is None else {"relay": self.relay.tick}
        return {"messages": self.messages.tick, **relay}

    def settled(self, hand: Hand, answer: Settled | TaskHarborError | None) -> None:
        """Learn what became of a job, and rule on its message; of a death the world is told."""
        is_settled = isinstance(answer, Settled)
        self.messages.found(hand.received, Finding.SETTLED if is_settled else Finding.UNSETTLED)
        if isinstance(answer, Settled) and answer.status is Status.DEAD:
            self._wake("relay")
