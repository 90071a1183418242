"""When leases are extended, with a manual clock."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from taskharbor.core.errors import LeaseLost, StoreUnavailable
from taskharbor.core.results import Skipped
from taskharbor.worker.execution import StopReason
from tests.support.manual_worker import LEASE
from tests.support.worker_rig import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.core.model import Lease
    from taskharbor.worker.execution import Execution
    from tests.support.manual_worker import Rig


def _is_leased(rig: Rig, execution: Execution) -> bool:
    job = stored(rig.driver, execution.claim.job.id)
    return job.lease_expires_at is not None and job.lease_expires_at > rig.clock.now()


def _answer(rig: Rig, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Lease], Any]) -> None:
    """Make the store answer every extension with *answer*, which may raise."""

    def extend(leases: Sequence[Lease], *, lease: timedelta) -> list[Any]:  # noqa: ARG001  the driver's signature
        return [answer(each) for each in leases]

    monkeypatch.setattr(rig.driver, "extend", extend)


def test_the_lease_is_extended_until_one_lease_after_the_timeout_and_no_longer(rig: Rig) -> None:
    [execution] = rig.start()

    rig.pass_time(28.9)
    last_kept = len(rig.kept)
    held_until = stored(rig.driver, execution.claim.job.id).lease_expires_at
    rig.pass_time(9.1)

    assert _is_leased(rig, execution) is False
    assert stored(rig.driver, execution.claim.job.id).lease_expires_at == held_until
    assert len(rig.kept) == last_kept  # the visibility of its message is no longer extended either


def test_an_outcome_on_its_way_keeps_its_lease_though_the_slot_is_lost(rig: Rig) -> None:
    [execution] = rig.start()

    rig.pass_time(30)
    execution.is_settling = True  # as when a worker stops without waiting for the handler
    rig.pass_time(12)

    assert _is_leased(rig, execution)


def test_the_heartbeat_wakes_for_the_timeout_and_for_the_lost_slot(rig: Rig) -> None:
    [execution] = rig.start()
    rig.pass_time(19.5)

    before = rig.heartbeat.tick()
    rig.pass_time(0.5)
    execution.ends_at = rig.runtime.seconds + LEASE.total_seconds()
    rig.pass_time(8.75, step=0.25)
    due = rig.heartbeat.tick()
    rig.pass_time(0.25)

    assert (before, due) == (timedelta(seconds=0.5), timedelta(seconds=0.25))
    assert rig.heartbeat.tick() == LEASE / 3


def test_a_handler_whose_lease_is_lost_is_stopped_at_the_next_beat(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    [execution] = rig.start()
    _answer(rig, monkeypatch, lambda lease: LeaseLost(lease.job_id))

    rig.pass_time(LEASE.total_seconds() / 3)

    assert execution.stop_reason is StopReason.LOST


def test_a_handler_whose_job_is_to_be_cancelled_is_stopped_at_the_next_beat(rig: Rig) -> None:
    [execution] = rig.start()
    rig.driver.cancel([execution.claim.job.id])

    rig.pass_time(LEASE.total_seconds() / 3)

    assert execution.stop_reason is StopReason.CANCEL


def test_a_notified_cancel_is_read_at_once_and_extends_no_lease(rig: Rig) -> None:
    canceled, other = rig.start(jobs=2)
    rig.pass_time(1)
    before = stored(rig.driver, other.claim.job.id)
    rig.driver.cancel([canceled.claim.job.id])

    rig.heartbeat.note_cancels()
    rig.heartbeat.tick()

    assert (canceled.stop_reason, other.stop_reason) == (StopReason.CANCEL, None)
    assert stored(rig.driver, other.claim.job.id) == before


def test_requested_cancels_are_read_once_for_each_notification(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    [execution] = rig.start()
    read = Mock(side_effect=rig.driver.cancel_requested)
    monkeypatch.setattr(rig.driver, "cancel_requested", read)
    rig.pass_time(0.5, step=0.1)
    rig.heartbeat.note_cancels()

    rig.pass_time(0.5, step=0.1)

    read.assert_called_once_with([execution.claim.lease])


def test_a_failed_read_of_requested_cancels_is_repeated_soon(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    [execution] = rig.start()
    rig.driver.cancel([execution.claim.job.id])
    rig.heartbeat.note_cancels()
    with monkeypatch.context() as away:
        away.setattr(rig.driver, "cancel_requested", Mock(side_effect=StoreUnavailable("away")))
        pause = rig.heartbeat.tick()
    rig.pass_time(pause.total_seconds())

    assert pause == timedelta(seconds=0.25)
    assert execution.stop_reason is StopReason.CANCEL


def test_a_cancel_notified_before_the_reply_of_the_claim_is_read_after_it(rig: Rig) -> None:
    [execution] = rig.start()
    rig.heartbeat.tick()
    before = rig.heartbeat.is_due_before([execution])

    rig.runtime.seconds += 0.1
    rig.heartbeat.note_cancels()

    assert (before, rig.heartbeat.is_due_before([execution])) == (False, True)


def test_a_lease_whose_row_is_locked_is_neither_lost_nor_forgotten(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    [execution] = rig.start()
    with monkeypatch.context() as locked:
        _answer(rig, locked, Skipped)
        rig.pass_time(4)
        was_stopped = execution.stop_reason is not None
        pause = rig.heartbeat.tick()
    rig.pass_time(0.25)

    assert was_stopped is False
    assert pause == timedelta(seconds=0.25)
    assert execution.ends_at == pytest.approx(rig.runtime.seconds + LEASE.total_seconds() * 0.95)


def test_handlers_are_stopped_while_a_third_of_their_lease_is_left(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    [execution] = rig.start()

    def unreachable(_lease: Lease) -> Any:
        raise StoreUnavailable("the network is gone")

    _answer(rig, monkeypatch, unreachable)
    rig.pass_time(5.25, step=0.25)  # of 8.5 s: the margin ends a lease half a second early
    was_running = execution.stop_reason is None
    rig.pass_time(0.25)

    assert was_running
    assert execution.stop_reason is StopReason.LOST


def test_an_outcome_on_its_way_keeps_its_lease(rig: Rig) -> None:
    [execution] = rig.start()
    execution.is_settling = True

    rig.pass_time(2 * LEASE.total_seconds())

    assert _is_leased(rig, execution)
