"""What a worker with a queue service has besides: its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.core.answers import Settled
from taskharbor.core.messages import MessageFinding
from taskharbor.worker.messages import MessageAcks

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.facts import HookEvent
    from taskharbor.delivery.transport import Transport
    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.worker.hand import Execution


class Mail:
    """Messages of one worker, and when they have something to do."""

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        transport: Transport,
        *,
        visibility: timedelta,
        wait: timedelta,
        wake: Callable[[str], None],
        tell: Callable[[HookEvent], None],
    ) -> None:
        self.transport, self.visibility, self.wait = transport, visibility, wait
        self.messages = MessageAcks(
            runtime, driver, transport, visibility=visibility, wake=lambda: wake("messages"), tell=tell
        )

    @property
    def ticks(self) -> dict[str, Callable[[], timedelta]]:
        return {"messages": self.messages.tick}

    def settled(self, execution: Execution, answer: Settled | TaskHarborError | None) -> None:
        """Learn what became of a job, and rule on its message."""
        is_settled = isinstance(answer, Settled)
        self.messages.resolve(execution.received, MessageFinding.SETTLED if is_settled else MessageFinding.UNSETTLED)
