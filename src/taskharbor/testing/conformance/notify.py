"""Notifying listeners of jobs that are due, and of cancels of running jobs.

A notify is a hint: listeners may be woken without a job, so no case requires that a listener is not woken. The
timeout is far longer than any notify takes; a case waits that long only if a notify is missing.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Final

from taskharbor.core.model import Schedule
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.drivers.base import Notice
from taskharbor.testing.conformance.subject import LEASE, Subject, new_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.drivers.base import Listener

_TIMEOUT: Final = timedelta(seconds=5)
_SHORT_WAIT: Final = timedelta(milliseconds=10)
_NO_WAIT: Final = timedelta(0)
_MAX_TRIES: Final = 100


def test_an_inserted_job_notifies_a_listener(subject: Subject) -> None:
    with _listening(subject) as listener:
        subject.insert()

        assert Notice.JOBS in listener.wait(_TIMEOUT)


def test_a_job_inserted_during_a_wait_ends_the_wait(subject: Subject) -> None:
    with _listening(subject) as listener:
        assert Notice.JOBS in _notice_during_wait(listener, subject.insert)


def test_a_job_of_any_listened_queue_notifies_a_listener(subject: Subject) -> None:
    with _listening(subject, "mail", "default") as listener:
        for queue in ("default", "mail"):
            subject.insert(queue=queue)
            assert Notice.JOBS in listener.wait(_TIMEOUT)


def test_every_listener_is_notified_of_a_job(subject: Subject) -> None:
    with _listening(subject) as one, _listening(subject) as other:
        subject.insert()

        assert one.wait(_TIMEOUT)
        assert other.wait(_TIMEOUT)


def test_a_wait_without_a_notify_times_out_and_returns_no_notice(subject: Subject) -> None:
    with _listening(subject) as listener:
        assert (listener.wait(_SHORT_WAIT), listener.wait(_NO_WAIT)) == (Notice.NONE, Notice.NONE)


def test_a_notify_ends_one_wait_only(subject: Subject) -> None:
    with _listening(subject) as listener:
        subject.insert()
        listener.wait(_TIMEOUT)

        assert not listener.wait(_SHORT_WAIT)


def test_a_requeued_job_notifies_a_listener(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)

    with _listening(subject) as listener:
        subject.requeue(job_id)

        assert Notice.JOBS in listener.wait(_TIMEOUT)


def test_a_job_rescheduled_to_now_notifies_a_listener(subject: Subject) -> None:
    job_id = subject.insert(delay=LEASE)

    with _listening(subject) as listener:
        subject.driver.reschedule([job_id], delay=_NO_WAIT)

        assert Notice.JOBS in listener.wait(_TIMEOUT)


def test_a_released_job_notifies_a_listener(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()

    with _listening(subject) as listener:
        subject.settle(claim, Outcome.release())

        assert Notice.JOBS in listener.wait(_TIMEOUT)


def test_a_job_of_a_schedule_notifies_a_listener(subject: Subject) -> None:
    due = subject.clock.now()
    nightly = Schedule(
        name="nightly", cron="0 2 * * *", timezone="UTC", type="greet", queue="default", payload=b"{}", next_at=due
    )
    subject.driver.control.put_schedules([nightly])

    with _listening(subject) as listener:
        subject.driver.maintenance.advance_schedule("nightly", fired=due, next_at=None, jobs=[new_job()])

        assert Notice.JOBS in listener.wait(_TIMEOUT)


def test_a_job_of_a_joined_transaction_notifies_a_listener_on_commit(subject: Subject) -> None:
    with _listening(subject) as listener:
        with subject.transaction() as insert:
            insert([new_job()])
            before = listener.wait(_NO_WAIT)
        after = listener.wait(_TIMEOUT)

    assert (before, after) == (Notice.NONE, Notice.JOBS)


def test_a_wait_is_ended_from_another_thread(subject: Subject) -> None:
    with _listening(subject) as listener:
        assert Notice.JOBS in _notice_during_wait(listener, listener.wake)


def test_a_wake_before_the_wait_ends_the_wait_at_once(subject: Subject) -> None:
    with _listening(subject) as listener:
        listener.wake()

        assert (listener.wait(_TIMEOUT), listener.wait(_NO_WAIT)) == (Notice.JOBS, Notice.NONE)


def test_a_cancel_of_a_running_job_notifies_the_listener_of_its_worker(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)

    with _listening(subject, worker="worker") as listener:
        subject.cancel(job_id)

        assert Notice.CANCELS in listener.wait(_TIMEOUT)


def test_a_listener_without_queues_is_notified_of_cancels(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)

    with closing(subject.driver.listen([], worker="worker")) as listener:
        assert _notice_during_wait(listener, lambda: subject.cancel(job_id)) == Notice.CANCELS


def test_a_repeated_cancel_of_a_running_job_notifies_again(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)
    subject.cancel(job_id)

    with _listening(subject, worker="worker") as listener:
        subject.cancel(job_id)

        assert Notice.CANCELS in listener.wait(_TIMEOUT)


def test_cancels_of_several_workers_jobs_notify_each_of_them(subject: Subject) -> None:
    job_ids = [subject.insert() for _ in range(3)]
    workers = ["first", "second", "ö" * 1_000]
    for worker in workers:
        subject.reserve(limit=1, worker=worker)

    with ExitStack() as stack:
        listeners = [stack.enter_context(_listening(subject, worker=worker)) for worker in workers]
        subject.driver.cancel(job_ids)

        assert all(Notice.CANCELS in listener.wait(_TIMEOUT) for listener in listeners)


@contextmanager
def _listening(subject: Subject, *queues: str, worker: str | None = None) -> Iterator[Listener]:
    with closing(subject.driver.listen(queues or ["default"], worker=worker)) as listener:
        yield listener


def _notice_during_wait(listener: Listener, call: Callable[[], object]) -> Notice:
    """Return the notice that ends a wait during which another thread makes the call.

    On a busy machine the call may come first, which proves nothing. Then it is made again during another wait.
    """
    for _ in range(_MAX_TRIES):
        called_at: list[float] = []

        def make_call(called_at: list[float] = called_at) -> None:
            called_at.append(monotonic())
            call()

        timer = Timer(_SHORT_WAIT.total_seconds(), make_call)
        timer.start()
        try:
            began_at = monotonic()
            notice = listener.wait(_TIMEOUT)
        finally:
            timer.join()
        if called_at[0] > began_at:
            return notice
    raise AssertionError("the call always came before the wait")
