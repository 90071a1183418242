"""The recorder alone, without a worker around it."""

from __future__ import annotations

from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING

from taskharbor import Client, JobRequest, MemoryDriver, Status
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.runtime import ThreadRuntime
from taskharbor.worker.hand import Hand, Hands
from taskharbor.worker.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence

MINUTE = timedelta(minutes=1)


def test_only_the_first_outcome_of_an_attempt_is_recorded_and_told() -> None:
    driver, runtime = MemoryDriver(), ThreadRuntime(plain=1)
    job_id = Client(driver).enqueue(JobRequest(type="run")).id
    [claim] = driver.reserve("default", token=new_token(), worker="w", lease=MINUTE, limit=1, patience=MINUTE)
    told: list[Outcome | None] = []

    def settled(ended: Sequence[tuple[Hand, Outcome | None]], _answers: object) -> None:
        told.extend(outcome for _hand, outcome in ended)

    hands = Hands(runtime, concurrency=1, queues={"default": 1})
    recorder = Recorder(runtime, driver, hands, settled=settled, freed=lambda: None)
    hand = Hand(claim, ends_at=inf, times_out_at=None)
    release, ack = Outcome.release(), Outcome.ack()

    took = [recorder.put(hand, release), recorder.put(hand, ack)]
    recorder.tick()
    recorder.tick()

    assert took == [True, False]
    assert told == [release]
    assert driver.inspector.get([job_id])[job_id].status is Status.PENDING
