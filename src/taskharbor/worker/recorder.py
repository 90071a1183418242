"""Writing outcomes down, many in one statement."""

from __future__ import annotations

import logging
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.answers import Settled, Settlement
from taskharbor.core.errors import TaskHarborError
from taskharbor.core.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.worker.hand import Hand, Hands

_LOG: Final = logging.getLogger(__name__)
BATCH: Final = 500
IDLE: Final = timedelta(seconds=60)
AGAIN: Final = timedelta(milliseconds=250)
AT_ONCE: Final = timedelta(0)


class Recorder:
    """Settles what has ended; while one statement is under way, what ends meanwhile gathers for the next.

    An outcome counts, and its job is let go, only when it is committed; its room is free for another
    job as soon as it is on its way, unless the store did not answer the last time. A lost reply is
    resolved by saying the same again: the token tells whether it was heard. While the store
    is away it keeps trying, as long as the lease holds.
    """

    def __init__(
        self, runtime: Runtime, driver: Driver, hands: Hands, *, settled: Settling, freed: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._hands = hands
        self._settled = settled
        self._freed = freed
        self._lock = runtime.lock()
        self._ended: deque[tuple[Hand, Outcome]] = deque()
        self._unsure: list[tuple[Hand, Outcome]] = []
        self._alone = 0
        self._choked_on: Hand | None = None

    def put(self, hand: Hand, outcome: Outcome | None) -> bool:
        """Take an outcome to record; where there is none, only let the job go. True, if a tick is due.

        Only the first outcome of an attempt counts.
        """
        with self._lock:
            if hand.is_settling:
                return False
            hand.is_settling = True
            if outcome is not None:
                # Within the lock, or of two that end at once each would take the other for the first.
                self._ended.append((hand, outcome))
                return len(self._ended) == 1
        self._let_go(hand, None, None)
        return False

    def _let_go(self, hand: Hand, outcome: Outcome | None, answer: Settled | TaskHarborError | None) -> None:
        self._hands.let_go([hand])
        self._freed()
        self._settled([(hand, outcome)], [answer])

    def tick(self) -> timedelta:
        is_sure = not self._unsure
        batch = self._next_batch()
        if not batch:
            return IDLE
        if is_sure:  # else a store that takes no outcomes would be asked for ever more jobs
            self._hands.make_room(hand for hand, _ in batch)
            self._freed()
        try:
            answers = self._driver.settle([Settlement(hand.claim.lease, outcome) for hand, outcome in batch])
        except TaskHarborError as error:  # away, or of another version: not the outcomes' fault
            self._keep(batch, error)
            return AGAIN
        except Exception as error:  # noqa: BLE001  one outcome that the store chokes on must not hold up the others
            return self._isolate(batch, error)
        self._unsure = []
        self._hands.let_go([hand for hand, _ in batch])
        self._freed()
        self._settled(batch, answers)
        return AT_ONCE if self._ended else IDLE

    def _next_batch(self) -> list[tuple[Hand, Outcome]]:
        """Take what has ended. Of a job that was in hand twice one outcome waits: a call names each job once."""
        batch = self._unsure
        later: list[tuple[Hand, Outcome]] = []
        most = 1 if self._alone else BATCH
        jobs = {hand.claim.job.id.int for hand, _ in batch}  # as numbers: a UUID takes three times as long to look up
        while self._ended and len(batch) < most:
            ended = self._ended.popleft()
            job_id = ended[0].claim.job.id.int
            (later if job_id in jobs else batch).append(ended)
            jobs.add(job_id)
        self._ended.extendleft(reversed(later))
        self._alone = max(0, self._alone - 1)
        return batch

    def _isolate(self, batch: list[tuple[Hand, Outcome]], error: Exception) -> timedelta:
        """Let each try alone; one that fails alone, and again, is recorded as just that."""
        _LOG.error("cannot record %d outcomes", len(batch), exc_info=error)
        if len(batch) > 1:
            self._unsure, self._alone = [], len(batch)
            self._ended.extendleft(reversed(batch))
            return AT_ONCE
        [(hand, outcome)] = batch
        if self._choked_on is hand:
            outcome = Outcome.fail(f"its outcome cannot be recorded: {type(error).__name__}")
        self._unsure, self._choked_on = [(hand, outcome)], hand
        return AGAIN

    def _keep(self, batch: Sequence[tuple[Hand, Outcome]], error: TaskHarborError) -> None:
        """Keep what can still be recorded; the rest is the store's to find out, once the leases are over."""
        now = self._runtime.monotonic()
        self._unsure = [(hand, outcome) for hand, outcome in batch if hand.ends_at > now]
        for hand, outcome in batch:
            if hand.ends_at <= now:
                _LOG.error("an outcome of job %s was not recorded before its lease ended: %s", hand.claim.job.id, error)
                self._let_go(hand, outcome, None)


if TYPE_CHECKING:
    Settling = Callable[[Sequence[tuple[Hand, Outcome | None]], Sequence[Settled | TaskHarborError | None]], None]
