"""When leases are extended, by a clock that moves by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tests.worker.manual import LEASE
from tests.worker.working import stored

if TYPE_CHECKING:
    from taskharbor.worker.hand import Hand
    from tests.worker.manual import Rig


def _is_leased(rig: Rig, hand: Hand) -> bool:
    job = stored(rig.driver, hand.claim.job.id)
    return job.lease_expires_at is not None and job.lease_expires_at > rig.clock.now()


def test_the_lease_is_extended_until_one_lease_after_the_timeout_and_no_longer(rig: Rig) -> None:
    [hand] = rig.start()

    rig.pass_time(28.9)
    last_kept = len(rig.kept)
    held_until = stored(rig.driver, hand.claim.job.id).lease_expires_at
    rig.pass_time(9.1)

    assert _is_leased(rig, hand) is False
    assert stored(rig.driver, hand.claim.job.id).lease_expires_at == held_until
    assert len(rig.kept) == last_kept  # neither is its message hidden any longer


def test_an_outcome_on_its_way_keeps_its_lease_though_the_slot_is_lost(rig: Rig) -> None:
    [hand] = rig.start()

    rig.pass_time(30)
    hand.is_settling = True  # as when a worker stops, and does not wait for the handler
    rig.pass_time(12)

    assert _is_leased(rig, hand)


def test_the_heartbeat_comes_for_the_timeout_and_for_the_lost_slot_and_then_rests(rig: Rig) -> None:
    [hand] = rig.start()
    rig.pass_time(19.5)

    before = rig.heartbeat.tick()
    rig.pass_time(0.5)
    hand.ends_at = rig.runtime.seconds + LEASE.total_seconds()
    rig.pass_time(8.75, step=0.25)
    due = rig.heartbeat.tick()
    rig.pass_time(0.25)

    assert (before, due) == (timedelta(seconds=0.5), timedelta(seconds=0.25))
    assert rig.heartbeat.tick() == LEASE / 3
