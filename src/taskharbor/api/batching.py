"""Many callers' single questions, asked of the store together."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import Awaitable, Callable, Sequence

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

MAX_BATCH: Final = 500


class RequestBatcher(Generic[Asked, Answer]):
    """Asks one batch at a time; what comes meanwhile is the next batch.

    So a single caller waits for nobody, and a thousand at once take a few statements and one thread.
    """

    def __init__(self, ask: Callable[[list[Asked]], Awaitable[Sequence[Answer]]]) -> None:
        self._ask = ask
        self._waiting: deque[tuple[Asked, Future[Answer]]] = deque()
        self._running: Task[None] | None = None

    def __call__(self, item: Asked) -> Future[Answer]:
        """Return what will be the answer. It is under way from here on, awaited or not."""
        loop = asyncio.get_running_loop()
        future: Future[Answer] = loop.create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = loop.create_task(self._run())
        return future

    async def _run(self) -> None:
        batch: list[tuple[Asked, Future[Answer]]] = []
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
                await self._answer(batch)
        finally:
            self._running = None
            for _, future in [*batch, *self._waiting]:  # none, unless the loop is closing
                future.cancel()

    async def _answer(self, batch: list[tuple[Asked, Future[Answer]]]) -> None:
        try:
            answers = await self._ask([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  whatever it was, it is told to everybody who asked
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():  # nobody waits any more
                future.set_result(answer)
