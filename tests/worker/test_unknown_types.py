"""Jobs of types without a handler here: left for other workers for five minutes, then dead letters."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.claims import UNHANDLED_AFTER
from taskharbor.core.states import Status
from taskharbor.worker import Worker
from tests.support.delivery_rig import LEASE, DeliveryRig

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.core.model import Job

FIVE_MINUTES: Final = 300.0
DELAY: Final = timedelta(minutes=2)


def _nothing(_job: Job) -> None: ...


class Polling(DeliveryRig):
    """A rig whose workers poll the store."""

    def worker(self, handlers: Any, driver: Any = None, **options: Any) -> Worker:
        worker = Worker(driver or self.driver, lease=LEASE, runtime=self.runtime("w"), **{"name": "w", **options})
        for job_type, handler in handlers.items():
            worker.register(job_type, handler)
        worker.start()
        return worker


class Messaging(DeliveryRig):
    """A rig whose workers receive messages, and whose enqueuer runs."""

    def __init__(self) -> None:
        super().__init__()
        self.enqueuer().start()


@pytest.fixture(params=[Polling, Messaging], ids=["polling", "by messages"])
def rig(request: pytest.FixtureRequest) -> DeliveryRig:
    make: Callable[[], DeliveryRig] = request.param
    return make()


def test_a_job_without_a_handler_dies_five_minutes_after_it_is_due(rig: DeliveryRig) -> None:
    job_id = rig.enqueue(type="unheard.of", delay=DELAY)
    rig.worker({"run": _nothing})
    rig.run(DELAY.total_seconds() + FIVE_MINUTES - 1)
    waiting = rig.job(job_id)
    assert (waiting.status.is_waiting, waiting.attempt_count) == (True, 0)

    rig.run(10)

    job = rig.job(job_id)
    assert timedelta(seconds=FIVE_MINUTES) == UNHANDLED_AFTER
    assert (job.status, job.attempt_count) == (Status.DEAD, 1)
    assert job.dead_reason == "no handler for type 'unheard.of' is registered here"
    assert rig.left() == 0


def test_a_worker_with_the_handler_runs_the_job_meanwhile(rig: DeliveryRig) -> None:
    job_id = rig.enqueue(type="new")
    rig.worker({"run": _nothing})
    rig.run(FIVE_MINUTES / 2)

    rig.worker({"new": _nothing}, name="newer")
    rig.run(FIVE_MINUTES / 3)

    job = rig.job(job_id)
    assert (job.status, job.attempt_count, job.worker_id) == (Status.SUCCEEDED, 1, "newer")


def test_a_worker_that_leaves_unknown_types_never_fails_them(rig: DeliveryRig) -> None:
    job_id = rig.enqueue(type="unheard.of")

    rig.worker({"run": _nothing}, unknown_types="leave")
    rig.run(3 * FIVE_MINUTES)

    assert (rig.job(job_id).status.is_waiting, rig.job(job_id).attempt_count) == (True, 0)


def test_unknown_types_do_not_hold_up_known_ones(rig: DeliveryRig) -> None:
    for _ in range(30):
        rig.enqueue(type="unheard.of", priority=-1)
    job_id = rig.enqueue()

    rig.worker({"run": _nothing}, concurrency=1)
    rig.run(30)

    assert rig.job(job_id).status is Status.SUCCEEDED
