from __future__ import annotations

import threading
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.errors import SchemaOutOfDate, StoreUnavailable, UsageError
from taskharbor.core.messages import MAX_BUNDLE, DeliveryNote, DeliveryRole, parse_message
from taskharbor.core.model import WorkerRecord
from taskharbor.core.states import Status
from taskharbor.delivery.transport import ItemFailure, TransportRefused
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.enqueuer import MIN_DUE_WAIT, DueTaskEnqueuer
from taskharbor.runtime import ThreadRuntime
from tests.support.delivery_rig import CAP, FIRST, LOCK, DeliveryRig
from tests.support.postgres import database
from tests.support.waiting import wait_until
from tests.support.worker_rig import Outage, enqueue, meddled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from taskharbor.core.ids import JobId
    from taskharbor.delivery.transport import OutgoingMessage
    from taskharbor.testing.simulation.queue_service import QueueService

MAX_IDLE = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


def _sent(rig: DeliveryRig, queue: str = "default") -> list[tuple[JobId, int]]:
    messages = [parse_message(copy.body) for copy in rig.service.queues.get(queue, [])]
    return [(named.job_id, named.seq) for message in messages for named in message or ()]


def test_a_due_job_is_dispatched_sent_and_recorded_as_sent() -> None:
    rig = DeliveryRig()
    job_id = rig.enqueue()

    pause = rig.enqueuer().tick()

    job = rig.job(job_id)
    assert _sent(rig) == [(job_id, 1)]
    assert (job.status, job.sends, job.sent_at) == (Status.ENQUEUED, 1, rig.world.store_time())
    assert pause == MAX_IDLE


def test_a_job_is_not_sent_before_it_is_due() -> None:
    rig = DeliveryRig()
    job_id = rig.enqueue(delay=timedelta(seconds=30))
    enqueuer = rig.enqueuer()

    enqueuer.tick()
    assert _sent(rig) == []
    rig.run(30)
    enqueuer.tick()

    assert _sent(rig) == [(job_id, 1)]


@pytest.mark.parametrize(
    ("delay", "pause"),
    [
        (timedelta(seconds=30), MAX_IDLE),
        (timedelta(milliseconds=300), timedelta(milliseconds=300)),
        (MICROSECOND, MIN_DUE_WAIT),
    ],
    ids=str,
)
def test_it_pauses_until_the_next_job_is_due_at_most_max_idle(delay: timedelta, pause: timedelta) -> None:
    rig = DeliveryRig()
    rig.enqueue(delay=delay)
    enqueuer = rig.enqueuer()

    assert enqueuer.tick() == pause
    rig.enqueue()
    assert enqueuer.tick() == pause


def test_thousands_of_jobs_are_sent_in_batches_of_ten() -> None:
    rig = DeliveryRig()
    jobs = {rig.enqueue() for _ in range(2_500)}
    enqueuer = rig.enqueuer(batch=1_000)

    pauses = [enqueuer.tick() for _ in range(3)]

    assert {job_id for job_id, _ in _sent(rig)} == jobs
    assert rig.service.calls["send"] == 250
    assert pauses == [timedelta(0), timedelta(0), MAX_IDLE]


def _sizes(rig: DeliveryRig) -> list[int]:
    """Return how many jobs each message names."""
    return [len(parse_message(copy.body) or ()) for copy in rig.service.queues.get("default", [])]


def test_by_default_every_message_names_one_job_in_the_first_format() -> None:
    rig = DeliveryRig()
    jobs = [rig.enqueue() for _ in range(500)]

    rig.enqueuer().tick()

    assert [copy.body for copy in rig.service.queues["default"]] == [
        f'{{"v":1,"id":"{job_id}","seq":1}}' for job_id in jobs
    ]


def test_while_a_whole_batch_is_due_messages_name_as_many_jobs_as_allowed() -> None:
    rig = DeliveryRig()
    jobs = {rig.enqueue() for _ in range(500)}

    rig.enqueuer(bundle=10).tick()

    assert _sizes(rig) == [10] * 50
    assert {job_id for job_id, _ in _sent(rig)} == jobs
    assert rig.service.calls["send"] == 5


@pytest.mark.parametrize(
    ("due", "workers", "sizes"),
    [
        (1, 1, [1]),
        (19, 1, [1] * 19),
        (20, 1, [2] * 10),
        (45, 1, [4] * 11 + [1]),
        (45, 0, [4] * 11 + [1]),
        (99, 1, [9] * 11),
        (120, 1, [10] * 12),
        (120, 4, [3] * 40),
        (120, 8, [1] * 120),
    ],
)
def test_few_jobs_are_spread_over_ten_messages_for_each_worker(due: int, workers: int, sizes: list[int]) -> None:
    rig = DeliveryRig()
    queues = {f"w{number}": "default" for number in range(workers)} | {"another": "mail"}
    for name, queue in queues.items():
        now = rig.driver.inspector.now()
        record = WorkerRecord(
            id=name, host="h", pid=1, queues=(queue,), types=(), concurrency=16, started_at=now, seen_at=now
        )
        rig.driver.maintenance.record_worker(record)
    for _ in range(due):
        rig.enqueue()

    rig.enqueuer(bundle=10).tick()

    assert _sizes(rig) == sizes


def test_a_job_that_is_sent_again_has_a_message_of_its_own() -> None:
    rig = DeliveryRig()
    for _ in range(10):
        rig.enqueue()
    enqueuer = rig.enqueuer(batch=10, bundle=5)
    enqueuer.tick()
    assert _sizes(rig) == [5, 5]

    rig.run(FIRST.seconds)
    enqueuer.tick()

    assert _sizes(rig) == [5, 5] + [1] * 10


def test_all_jobs_of_a_message_that_was_not_sent_are_sent_again() -> None:
    rig = DeliveryRig()
    jobs = {rig.enqueue() for _ in range(30)}
    rig.service.throttled.add("default")
    rig.enqueuer(batch=30, bundle=10).tick()
    assert {(rig.job(job_id).sent_at, rig.job(job_id).resends) for job_id in jobs} == {(None, 0)}
    rig.service.throttled.clear()

    rig.enqueuer(batch=30, bundle=10).tick()

    assert {job_id for job_id, seq in _sent(rig) if seq == 2} == jobs
    assert _sizes(rig) == [10, 10, 10]


def test_all_jobs_of_a_message_with_an_unknown_result_wait_for_their_lock() -> None:
    rig = DeliveryRig()
    jobs = {rig.enqueue() for _ in range(20)}
    rig.service.broken.add("send")
    rig.enqueuer(batch=20, bundle=10).tick()
    rig.service.broken.clear()
    rig.enqueuer(batch=20, bundle=10).tick()
    assert _sizes(rig) == []

    rig.run(LOCK.seconds)
    rig.enqueuer(batch=20, bundle=10).tick()

    assert {job_id for job_id, _ in _sent(rig)} == jobs


@pytest.mark.parametrize("bundle", [0, -1, MAX_BUNDLE + 1])
def test_a_bundle_out_of_bounds_is_refused(bundle: int) -> None:
    with pytest.raises(UsageError, match=f"from 1 to {MAX_BUNDLE}"):
        DeliveryRig().enqueuer(bundle=bundle)


def test_an_unclaimed_job_is_sent_again_at_growing_intervals() -> None:
    rig = DeliveryRig()
    rig.enqueue()
    enqueuer = rig.enqueuer()
    sent_at = []
    for second in range(600):
        before = len(_sent(rig))
        enqueuer.tick()
        sent_at += [second] * (len(_sent(rig)) - before)
        rig.run(1)

    gaps = [after - before for before, after in pairwise(sent_at)]
    assert gaps == [FIRST.seconds, 2 * FIRST.seconds, CAP.seconds, CAP.seconds]


def test_at_most_max_unclaimed_jobs_are_sent() -> None:
    rig = DeliveryRig()
    for _ in range(30):
        rig.enqueue()
    enqueuer = rig.enqueuer(max_unclaimed=12)

    for _ in range(3):
        enqueuer.tick()

    assert len(_sent(rig)) == 12


def test_two_enqueuers_send_each_job_once() -> None:
    rig = DeliveryRig()
    for _ in range(40):
        rig.enqueue()
    one, other = rig.enqueuer(batch=7), rig.enqueuer(batch=7)

    for _ in range(4):
        one.tick()
        other.tick()

    assert len(_sent(rig)) == len(set(_sent(rig))) == 40


def test_a_message_that_was_not_sent_is_sent_immediately_and_not_counted() -> None:
    rig = DeliveryRig()
    job_id = rig.enqueue()
    rig.service.throttled.add("default")
    rig.enqueuer().tick()
    rig.service.throttled.clear()
    assert (rig.job(job_id).sent_at, rig.job(job_id).resends) == (None, 0)

    rig.enqueuer().tick()

    assert _sent(rig) == [(job_id, 2)]


def test_a_send_without_a_reply_is_repeated_when_its_lock_expires() -> None:
    rig = DeliveryRig()
    job_id = rig.enqueue()
    enqueuer = rig.enqueuer()
    rig.service.broken.add("send")
    enqueuer.tick()
    rig.service.broken.clear()

    rig.run(LOCK.seconds - 1)
    enqueuer.tick()
    assert _sent(rig) == []
    rig.run(1)
    enqueuer.tick()

    assert _sent(rig) == [(job_id, 2)]


def test_a_message_with_an_unknown_result_is_repeated_when_its_lock_expires() -> None:
    rig = DeliveryRig()

    class Unknown:
        def send(self, _queue: str, messages: Sequence[OutgoingMessage]) -> list[Any]:
            return [ItemFailure("Unanswered", "not mentioned", is_permanent=False, is_unknown=True) for _ in messages]

    job_id = rig.enqueue()
    DueTaskEnqueuer(rig.runtime("e"), rig.driver, Unknown(), queues=["default"], lock=LOCK).tick()  # type: ignore[arg-type]
    rig.enqueuer().tick()
    assert _sent(rig) == []

    rig.run(LOCK.seconds)
    rig.enqueuer().tick()

    assert _sent(rig) == [(job_id, 2)]


def test_after_a_failure_the_rest_of_the_batch_is_left_unsent() -> None:
    rig = DeliveryRig()
    for _ in range(35):
        rig.enqueue()
    rig.service.broken.add("send")
    rig.enqueuer().tick()
    rig.service.broken.clear()

    rig.enqueuer().tick()

    assert rig.service.calls["send"] == 1 + 3
    assert len(_sent(rig)) == 25  # the result of the other ten is unknown


def test_a_failing_queue_is_tried_at_growing_intervals_with_few_jobs() -> None:
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
    assert len({job_id for job_id, _ in _sent(rig)}) == 500


def test_a_refused_queue_does_not_delay_others() -> None:
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

    assert _sent(rig, "mail") == [(fine, 1)]
    assert (rig.job(lost).status, rig.job(lost).resends) == (Status.ENQUEUED, 0)


def test_the_store_knows_which_queues_have_an_enqueuer_and_why_sending_fails() -> None:
    rig = DeliveryRig()
    enqueuer = rig.enqueuer()
    enqueuer.tick()
    began = rig.world.store_time()
    assert rig.driver.inspector.delivery("default") == [_note(began)]

    rig.enqueue()
    rig.service.broken.add("send")
    enqueuer.tick()
    rig.run(1)
    enqueuer.tick()
    [broken] = rig.driver.inspector.delivery("default")
    assert (bool(broken.problem), broken.seen_at) == (True, began + timedelta(seconds=1))

    rig.service.broken.clear()
    rig.run(LOCK.total_seconds())
    enqueuer.tick()
    enqueuer.tick()
    assert rig.driver.inspector.delivery("default") == [_note(rig.world.store_time())]


def test_an_enqueuer_is_recorded_every_ten_seconds() -> None:
    rig = DeliveryRig()
    enqueuer, seen = rig.enqueuer(), []
    for _ in range(25):
        enqueuer.tick()
        seen += [note.seen_at for note in rig.driver.inspector.delivery("default")]
        rig.run(1)

    began = seen[0]
    assert began is not None
    assert sorted(set(filter(None, seen))) == [began + timedelta(seconds=seconds) for seconds in (0, 10, 20)]


def _note(seen_at: datetime) -> DeliveryNote:
    return DeliveryNote(queue="default", role=DeliveryRole.SENDER, seen_at=seen_at)


def test_unrecorded_results_are_recorded_before_anything_else_is_sent() -> None:
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
    assert len(_sent(rig)) == 1


def test_an_unavailable_store_is_queried_again_after_max_idle() -> None:
    rig = DeliveryRig()
    outage = Outage()
    outage.begin()
    rig.enqueue()

    assert rig.enqueuer(meddled(rig.driver, outage)).tick() == MAX_IDLE
    assert _sent(rig) == []


def test_a_new_job_wakes_the_enqueuer() -> None:
    rig = DeliveryRig()
    driver = MemoryDriver()
    enqueuer = DueTaskEnqueuer(
        ThreadRuntime(sync_threads=1), driver, rig.service, queues=["default"], max_idle=timedelta(seconds=20)
    )
    enqueuer.start()
    try:
        wait_until(lambda: driver.statements > 0)
        enqueue(driver, "run")

        assert wait_until(lambda: len(_sent(rig)) == 1) < 5
    finally:
        enqueuer.stop()


class Watched:
    """A transport that sends after *delay* seconds, and counts the threads that send."""

    def __init__(self, service: QueueService, *, delay: float) -> None:
        self._service, self._delay = service, delay
        self._lock = threading.Lock()
        self._sending = 0
        self.max_sending = 0
        self.threads: set[str] = set()

    def send(self, queue: str, messages: Sequence[OutgoingMessage]) -> list[ItemFailure | None]:
        with self._lock:
            self.threads.add(threading.current_thread().name)
            self._sending += 1
            self.max_sending = max(self.max_sending, self._sending)
        threading.Event().wait(self._delay)
        with self._lock:
            self._sending -= 1
            return self._service.send(queue, messages)


def test_several_threads_send_each_job_once_if_replies_are_slow() -> None:
    rig = DeliveryRig()
    driver, transport = MemoryDriver(), Watched(rig.service, delay=0.01)
    jobs = {enqueue(driver, "run") for _ in range(300)}

    DueTaskEnqueuer(ThreadRuntime(sync_threads=1), driver, transport, queues=["default"], senders=4).tick()  # type: ignore[arg-type]

    assert {job_id for job_id, _ in _sent(rig)} == jobs
    assert len(_sent(rig)) == 300
    assert len(transport.threads) == 4


def test_one_thread_sends_if_replies_are_fast() -> None:
    class Instant(ThreadRuntime):
        def monotonic(self) -> float:
            return 0.0

    rig = DeliveryRig()
    driver, transport = MemoryDriver(), Watched(rig.service, delay=0)
    for _ in range(300):
        enqueue(driver, "run")

    DueTaskEnqueuer(Instant(sync_threads=1), driver, transport, queues=["default"], senders=4).tick()  # type: ignore[arg-type]

    assert len(_sent(rig)) == 300
    assert len(transport.threads) == 1


def test_one_loop_at_a_time_sends_to_a_queue() -> None:
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
        wait_until(lambda: len(_sent(rig)) == 400)
    finally:
        enqueuer.stop()

    assert transport.max_sending == 1
    assert len(transport.threads) == 2


@pytest.mark.parametrize("queues", [[], ["no spaces"]], ids=str)
def test_invalid_queues_are_refused(queues: list[str]) -> None:
    with pytest.raises(UsageError):
        DeliveryRig().enqueuer(queues=queues)


def test_a_store_error_does_not_stop_the_enqueuer() -> None:
    rig = DeliveryRig()

    def fail_dispatch(verb: str, call: Any) -> Any:
        if verb == "dispatch":
            raise StoreUnavailable("disconnected by a test")
        return call()

    enqueuer = rig.enqueuer(meddled(rig.driver, fail_dispatch))
    enqueuer.start()
    rig.run(5)

    assert rig.failed == []


def test_an_enqueuer_on_a_store_without_tables_does_not_start() -> None:
    with database(migrated=False) as url, closing(PostgresDriver(url)) as driver:
        transport: Any = None  # nothing is sent
        enqueuer = DueTaskEnqueuer(ThreadRuntime(sync_threads=1), driver, transport, queues=["default"])

        with pytest.raises(SchemaOutOfDate, match="run 'taskharbor migrate up'"):
            enqueuer.start()
