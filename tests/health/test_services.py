"""What a worker, an enqueuer and a janitor are judged by."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor import MemoryDriver, Worker
from taskharbor.health import ServiceHealth
from taskharbor.health.checks import is_passed
from taskharbor.janitor import Janitor
from taskharbor.runtime import ThreadRuntime
from taskharbor.worker import claimer
from tests.support.delivery_rig import DeliveryRig
from tests.support.waiting import wait_until
from tests.support.worker_rig import Hold, Outage, meddled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pytest

    from tests.support.worker_rig import Meddle

POLL: Final = timedelta(milliseconds=20)


@contextmanager
def running(meddle: Meddle) -> Iterator[tuple[Worker, ServiceHealth]]:
    worker, health = Worker(meddled(MemoryDriver(), meddle), poll=POLL), ServiceHealth()
    health.watch(worker.watched)
    worker.start()
    try:
        wait_until(lambda: is_passed(health.ready()))
        yield worker, health
    finally:
        worker.stop()


def failed(health: ServiceHealth) -> Mapping[str, str]:
    return {check.name: check.problem for check in health.ready() if check.problem}


def test_a_worker_is_not_ready_before_its_first_claim_and_after_its_stop() -> None:
    worker, health = Worker(MemoryDriver()), ServiceHealth()
    health.watch(worker.watched)
    before = failed(health)
    worker.start()
    wait_until(lambda: is_passed(health.ready()))
    loops = {*worker.watched.loops.activities}
    worker.stop()

    assert before == {"claims": "no claim has been answered yet"}
    assert {"source", "recorder", "lease-heartbeat", "worker-heartbeat", "janitor"} <= loops
    assert failed(health) == {"shutdown": "the service is stopping"}
    assert is_passed(health.live())


def test_a_worker_whose_claims_fail_is_not_ready_until_one_succeeds() -> None:
    outage, hold = Outage("reserve"), Hold("reserve")
    with running(lambda verb, call: hold(verb, lambda: outage(verb, call))) as (_, health):
        outage.begin()
        wait_until(lambda: failed(health) == {"claims": "the last claim failed"})
        hold.is_on.set()
        assert hold.came.wait(30)
        during_the_next = failed(health)
        outage.end()
        hold.may_go.set()
        wait_until(lambda: is_passed(health.ready()))

    assert during_the_next == {"claims": "the last claim failed"}


def test_a_worker_whose_claim_is_not_answered_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimer, "SLOW_CLAIM_SECONDS", 0.1)
    hold = Hold("reserve")
    with running(hold) as (_, health):
        hold.is_on.set()
        assert hold.came.wait(30)
        wait_until(lambda: failed(health) == {"claims": "the store has not answered a claim for too long"})
        hold.may_go.set()
        wait_until(lambda: is_passed(health.ready()))


def test_a_worker_with_messages_is_ready_when_each_queue_has_claimed() -> None:
    rig = DeliveryRig()
    watched = rig.worker({}, queues=["default", "mail"]).watched
    before = watched.problems()
    rig.run()

    assert before == {"claims": "no claim has been answered yet"}
    assert watched.problems() == {"claims": ""}


def test_an_enqueuer_is_ready_while_the_store_dispatches() -> None:
    rig, outage = DeliveryRig(), Outage("dispatch")
    enqueuer = rig.enqueuer(meddled(rig.driver, outage))
    health = ServiceHealth()
    health.watch(enqueuer.watched)
    before = failed(health)
    enqueuer.tick()
    ready = failed(health)
    outage.begin()
    enqueuer.tick()

    assert before == {"dispatch": "nothing has been dispatched yet"}
    assert ready == {}
    assert failed(health) == {"dispatch": "the store failed in the last tick"}


def test_an_enqueuer_that_cannot_send_to_a_queue_is_not_ready() -> None:
    rig = DeliveryRig()
    watched = (enqueuer := rig.enqueuer()).watched
    rig.service.broken.add("send")
    rig.enqueue()
    enqueuer.tick()

    assert watched.problems() == {"dispatch": "", "queue:default": "sending failed"}


def test_a_janitor_reports_a_tick_in_which_the_store_failed() -> None:
    outage = Outage("claim_duty")
    janitor = Janitor(ThreadRuntime(sync_threads=1), meddled(MemoryDriver(), outage), lease=timedelta(seconds=30))
    before = janitor.problem
    janitor.tick()
    first = janitor.problem
    outage.begin()
    janitor._check_at = dict.fromkeys(janitor._check_at, 0.0)  # noqa: SLF001  as after its period
    janitor.tick()

    assert before == "no duty has been checked yet"
    assert first == ""
    assert janitor.problem == "the store failed in the last tick"
