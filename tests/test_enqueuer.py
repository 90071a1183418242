from __future__ import annotations

import threading
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.errors import StoreUnavailable, UsageError
from taskharbor.core.messages import parse_message
from taskharbor.core.states import Status
from taskharbor.delivery.transport import ItemFailure, TransportRefused
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.enqueuer import MIN_DUE_WAIT, DueTaskEnqueuer
from taskharbor.runtime import ThreadRuntime
from tests.support.delivery_rig import CAP, FIRST, LOCK, DeliveryRig
from tests.support.waiting import wait_until
from tests.support.worker_rig import Outage, enqueue, meddled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.delivery.transport import OutgoingMessage
    from taskharbor.testing.simulation.queue_service import QueueService

PERIOD = timedelta(seconds=1)
MOMENT = timedelta(microseconds=1)


def _rung(rig: DeliveryRig, queue: str = "default") -> list[tuple[JobId, int]]:
    messages = [parse_message(copy.body) for copy in rig.service.queues.get(queue, [])]
    return [(message.job_id, message.seq) for message in messages if message is not None]


def test_a_due_job_is_marked_then_sent_then_noted_as_sent() -> None:
    rig = DeliveryRig()
    job_id = rig.enqueue()

    pause = rig.enqueuer().tick()

    job = rig.job(job_id)
    assert _rung(rig) == [(job_id, 1)]
    assert (job.status, job.sends, job.sent_at) == (Status.ENQUEUED, 1, rig.world.store_time())
    assert pause == PERIOD


def test_a_job_is_not_sent_before_it_is_due() -> None:
    rig = DeliveryRig()
    job_id = rig.enqueue(delay=timedelta(seconds=30))
    enqueuer = rig.enqueuer()

    enqueuer.tick()
    assert _rung(rig) == []
    rig.run(30)
    enqueuer.tick()

    assert _rung(rig) == [(job_id, 1)]


@pytest.mark.parametrize(
    ("delay", "pause"),
    [
        (timedelta(seconds=30), PERIOD),
        (timedelta(milliseconds=300), timedelta(milliseconds=300)),
        (MOMENT, MIN_DUE_WAIT),
    ],
    ids=str,
)
def test_it_rests_until_the_next_job_is_due_and_a_period_at_most(delay: timedelta, pause: timedelta) -> None:
    rig = DeliveryRig()
    rig.enqueue(delay=delay)
    enqueuer = rig.enqueuer()

    assert enqueuer.tick() == pause
    rig.enqueue()
    assert enqueuer.tick() == pause


def test_thousands_of_jobs_go_out_in_tens() -> None:
    rig = DeliveryRig()
    jobs = {rig.enqueue() for _ in range(2_500)}
    enqueuer = rig.enqueuer(batch=1_000)

    pauses = [enqueuer.tick() for _ in range(3)]

    assert {job_id for job_id, _ in _rung(rig)} == jobs
    assert rig.service.calls["send"] == 250
    assert pauses == [timedelta(0), timedelta(0), PERIOD]


def test_a_job_that_nobody_claims_is_sent_again_ever_more_seldom() -> None:
    rig = DeliveryRig()
    rig.enqueue()
    enqueuer = rig.enqueuer()
    sent_at = []
    for second in range(600):
        before = len(_rung(rig))
        enqueuer.tick()
        sent_at += [second] * (len(_rung(rig)) - before)
        rig.run(1)

    gaps = [after - before for before, after in pairwise(sent_at)]
    assert gaps == [FIRST.seconds, 2 * FIRST.seconds, CAP.seconds, CAP.seconds]


def test_no_more_than_so_many_unclaimed_jobs_are_out_at_once() -> None:
    rig = DeliveryRig()
    for _ in range(30):
        rig.enqueue()
    enqueuer = rig.enqueuer(max_unclaimed=12)

    for _ in range(3):
        enqueuer.tick()

    assert len(_rung(rig)) == 12


def test_two_enqueuers_send_each_job_once() -> None:
    rig = DeliveryRig()
    for _ in range(40):
        rig.enqueue()
    one, other = rig.enqueuer(batch=7), rig.enqueuer(batch=7)

    for _ in range(4):
        one.tick()
        other.tick()

    assert len(_rung(rig)) == len(set(_rung(rig))) == 40


def test_what_was_certainly_not_sent_can_be_sent_at_once_and_does_not_count() -> None:
    rig = DeliveryRig()
    job_id = rig.enqueue()
    rig.service.throttled.add("default")
    rig.enqueuer().tick()
    rig.service.throttled.clear()
    assert (rig.job(job_id).sent_at, rig.job(job_id).resends) == (None, 0)

    rig.enqueuer().tick()

    assert _rung(rig) == [(job_id, 2)]


def test_a_send_without_an_answer_is_left_to_the_end_of_its_lock() -> None:
    rig = DeliveryRig()
    job_id = rig.enqueue()
    enqueuer = rig.enqueuer()
    rig.service.broken.add("send")
    enqueuer.tick()
    rig.service.broken.clear()

    rig.run(LOCK.seconds - 1)
    enqueuer.tick()
    assert _rung(rig) == []
    rig.run(1)
    enqueuer.tick()

    assert _rung(rig) == [(job_id, 2)]


def test_a_message_of_which_nothing_is_known_is_left_to_the_end_of_its_lock_too() -> None:
    rig = DeliveryRig()

    class Silent:
        def send(self, _queue: str, messages: Sequence[OutgoingMessage]) -> list[Any]:
            return [ItemFailure("Unanswered", "not mentioned", is_permanent=False, is_unknown=True) for _ in messages]

    job_id = rig.enqueue()
    DueTaskEnqueuer(rig.runtime("e"), rig.driver, Silent(), queues=["default"], lock=LOCK).tick()  # type: ignore[arg-type]
    rig.enqueuer().tick()
    assert _rung(rig) == []

    rig.run(LOCK.seconds)
    rig.enqueuer().tick()

    assert _rung(rig) == [(job_id, 2)]


def test_after_a_failure_the_rest_of_the_batch_is_left_unsent() -> None:
    rig = DeliveryRig()
    for _ in range(35):
        rig.enqueue()
    rig.service.broken.add("send")
    rig.enqueuer().tick()
    rig.service.broken.clear()

    rig.enqueuer().tick()

    assert rig.service.calls["send"] == 1 + 3
    assert len(_rung(rig)) == 25  # of the others nobody knows


def test_while_sending_fails_a_queue_is_tried_ever_more_seldom_and_with_few_jobs() -> None:
    rig = DeliveryRig()
    for _ in range(500):
        rig.enqueue()
    enqueuer = rig.enqueuer()
    rig.service.broken.add("send")
    for _ in range(120):
        enqueuer.tick()
        rig.run(1)

    assert rig.service.calls["send"] <= 10
    rig.service.broken.clear()
    for _ in range(60):
        enqueuer.tick()
        rig.run(1)
    assert len({job_id for job_id, _ in _rung(rig)}) == 500


def test_a_queue_that_is_refused_does_not_keep_others_from_being_served() -> None:
    rig = DeliveryRig()
    service = rig.service

    class Picky:
        def send(self, queue: str, messages: Sequence[OutgoingMessage]) -> list[Any]:
            if queue == "missing":
                raise TransportRefused("there is no queue 'missing'", "make it")
            return list(service.send(queue, messages))

    lost, fine = rig.enqueue(queue="missing"), rig.enqueue(queue="mail")
    enqueuer = DueTaskEnqueuer(rig.runtime("e"), rig.driver, Picky(), queues=["missing", "mail"])  # type: ignore[arg-type]
    enqueuer.tick()
    enqueuer.tick()

    assert _rung(rig, "mail") == [(fine, 1)]
    assert (rig.job(lost).status, rig.job(lost).resends) == (Status.ENQUEUED, 0)


def test_what_the_store_did_not_hear_is_said_again_before_anything_else_is_sent() -> None:
    rig = DeliveryRig()
    outage = Outage("record_dispatch")
    enqueuer = rig.enqueuer(meddled(rig.driver, outage))
    job_id = rig.enqueue()
    outage.begin()
    enqueuer.tick()
    assert rig.job(job_id).sent_at is None

    outage.end()
    enqueuer.tick()

    assert rig.job(job_id).sent_at is not None
    assert len(_rung(rig)) == 1


def test_a_store_out_of_reach_is_asked_again_a_period_later() -> None:
    rig = DeliveryRig()
    outage = Outage()
    outage.begin()
    rig.enqueue()

    assert rig.enqueuer(meddled(rig.driver, outage)).tick() == PERIOD
    assert _rung(rig) == []


def test_a_job_is_sent_long_before_the_next_period() -> None:
    rig = DeliveryRig()
    driver = MemoryDriver()
    enqueuer = DueTaskEnqueuer(
        ThreadRuntime(sync_threads=1), driver, rig.service, queues=["default"], max_idle=timedelta(seconds=20)
    )
    enqueuer.start()
    try:
        wait_until(lambda: driver.statements > 0)
        enqueue(driver, "run")

        assert wait_until(lambda: len(_rung(rig)) == 1) < 5
    finally:
        enqueuer.stop()


class Watched:
    """Passes messages on after *delay* seconds; notes who sent, and how many did at once at most."""

    def __init__(self, service: QueueService, *, delay: float) -> None:
        self._service, self._delay = service, delay
        self._noting = threading.Lock()
        self._at_once = 0
        self.most_at_once = 0
        self.threads: set[str] = set()

    def send(self, queue: str, messages: Sequence[OutgoingMessage]) -> list[ItemFailure | None]:
        with self._noting:
            self.threads.add(threading.current_thread().name)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        threading.Event().wait(self._delay)
        with self._noting:
            self._at_once -= 1
            return self._service.send(queue, messages)


def test_where_answers_take_their_time_jobs_are_sent_by_several_threads_and_each_once() -> None:
    rig = DeliveryRig()
    driver, transport = MemoryDriver(), Watched(rig.service, delay=0.01)
    jobs = {enqueue(driver, "run") for _ in range(300)}

    DueTaskEnqueuer(ThreadRuntime(sync_threads=1), driver, transport, queues=["default"], senders=4).tick()  # type: ignore[arg-type]

    assert {job_id for job_id, _ in _rung(rig)} == jobs
    assert len(_rung(rig)) == 300
    assert len(transport.threads) == 4


def test_where_answers_come_at_once_one_thread_sends() -> None:
    class Instant(ThreadRuntime):
        def monotonic(self) -> float:
            return 0.0

    rig = DeliveryRig()
    driver, transport = MemoryDriver(), Watched(rig.service, delay=0)
    for _ in range(300):
        enqueue(driver, "run")

    DueTaskEnqueuer(Instant(sync_threads=1), driver, transport, queues=["default"], senders=4).tick()  # type: ignore[arg-type]

    assert len(_rung(rig)) == 300
    assert len(transport.threads) == 1


def test_while_one_thread_sends_to_a_queue_the_other_does_not() -> None:
    rig = DeliveryRig()
    driver, transport = MemoryDriver(), Watched(rig.service, delay=0.002)
    for _ in range(400):
        enqueue(driver, "run")
    enqueuer = DueTaskEnqueuer(
        ThreadRuntime(sync_threads=1),
        driver,
        transport,  # type: ignore[arg-type]
        queues=["default"],
        batch=50,
        senders=1,
    )
    enqueuer.start()
    try:
        wait_until(lambda: len(_rung(rig)) == 400)
    finally:
        enqueuer.stop()

    assert transport.most_at_once == 1
    assert len(transport.threads) == 2


@pytest.mark.parametrize("queues", [[], ["no spaces"]], ids=str)
def test_queues_that_make_no_sense_are_refused(queues: list[str]) -> None:
    with pytest.raises(UsageError):
        DeliveryRig().enqueuer(queues=queues)


def test_an_error_of_the_store_is_no_error_of_the_enqueuer() -> None:
    rig = DeliveryRig()

    def away(verb: str, call: Any) -> Any:
        if verb == "dispatch":
            raise StoreUnavailable("unplugged by a test")
        return call()

    enqueuer = rig.enqueuer(meddled(rig.driver, away))
    enqueuer.start()
    rig.run(5)

    assert rig.failed == []
