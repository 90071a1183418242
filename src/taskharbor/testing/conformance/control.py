"""What the store keeps besides jobs: the audit log, API keys, duties, workers, paused queues and finished counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.ids import new_token
from taskharbor.core.model import ApiKey, AuditEntry
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Extended, FinishedCount, Settled
from taskharbor.core.states import Status
from taskharbor.testing.conformance.races import race
from taskharbor.testing.conformance.subject import LEASE, LONG_AGO, TICK, Subject

if TYPE_CHECKING:
    from taskharbor.core.ids import Token

_YEAR: Final = timedelta(days=365)
_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)


def test_an_audit_entry_is_stored_unchanged(subject: Subject) -> None:
    entry = _entry(actor="key:k1", action="requeue", target="job 7", detail={"why": "fixed", "ä": '"…"'})

    subject.driver.control.record_audit([entry])

    assert subject.driver.inspector.audit(limit=10) == [replace(entry, at=subject.clock.now())]


def test_an_audit_entry_with_any_text_is_stored(subject: Subject) -> None:
    odd = "nul \x00 and a lone surrogate \udcff"
    entry = _entry(actor=odd, action=odd, target=odd, detail={odd: odd})

    subject.driver.control.record_audit([entry])

    shown = "nul \\x00 and a lone surrogate \\udcff"
    [stored] = subject.driver.inspector.audit(limit=10)
    assert (stored.actor, stored.action, stored.target, stored.detail) == (shown, shown, shown, {shown: shown})


def test_an_audit_entry_gets_the_stores_time(subject: Subject) -> None:
    subject.driver.control.record_audit([_entry(at=LONG_AGO)])

    [entry] = subject.driver.inspector.audit(limit=10)

    assert entry.at == subject.clock.now()


def test_a_stored_audit_entry_cannot_be_changed(subject: Subject) -> None:
    detail = {"why": "fixed"}
    entry = _entry(detail=detail)
    subject.driver.control.record_audit([entry])
    before = [replace(entry, at=subject.clock.now(), detail={"why": "fixed"})]
    subject.advance(TICK)

    detail["why"] = "no reason"
    subject.driver.control.record_audit([replace(entry, actor="another"), _entry()])

    assert subject.driver.inspector.audit(limit=10)[1:] == before


def test_audit_entries_are_listed_newest_first(subject: Subject) -> None:
    ids = sorted(new_token() for _ in range(3))
    for entry_id in (ids[1], ids[2], ids[0]):
        subject.driver.control.record_audit([_entry(id=entry_id)])
        subject.advance(TICK)

    assert _audit_ids(subject, limit=10) == [ids[0], ids[2], ids[1]]


def test_pages_of_the_audit_hold_every_entry_once(subject: Subject) -> None:
    subject.driver.control.record_audit([_entry() for _ in range(3)])
    subject.advance(TICK)
    subject.driver.control.record_audit([_entry() for _ in range(2)])
    everything = _audit_ids(subject, limit=10)

    first = _audit_ids(subject, limit=2)
    second = _audit_ids(subject, limit=2, before=first[-1])
    third = _audit_ids(subject, limit=2, before=second[-1])

    assert (first + second + third, len(set(everything))) == (everything, 5)
    assert _audit_ids(subject, limit=2, before=third[-1]) == []


def test_the_audit_of_one_target_is_listed_by_itself(subject: Subject) -> None:
    for target in ("job 1", "job 2", "job 1", "job 1"):
        subject.driver.control.record_audit([_entry(target=target)])
        subject.advance(TICK)
    fourth, third, _, first = _audit_ids(subject, limit=10)

    assert _audit_ids(subject, limit=2, target="job 1") == [fourth, third]
    assert _audit_ids(subject, limit=2, before=third, target="job 1") == [first]
    assert _audit_ids(subject, limit=2, target="job") == []


def test_the_audit_of_one_actor_or_action_is_listed_by_itself(subject: Subject) -> None:
    for actor, action in (("ann", "cancel"), ("bob", "cancel"), ("ann", "requeue"), ("ann", "cancel")):
        subject.driver.control.record_audit([_entry(actor=actor, action=action)])
        subject.advance(TICK)
    fourth, third, second, first = _audit_ids(subject, limit=10)

    assert _audit_ids(subject, limit=2, actor="ann") == [fourth, third]
    assert _audit_ids(subject, limit=2, before=third, actor="ann") == [first]
    assert _audit_ids(subject, limit=9, action="cancel") == [fourth, second, first]
    assert _audit_ids(subject, limit=9, before=second, action="cancel") == [first]
    assert _audit_ids(subject, limit=9, action="purge") == []


def test_an_audit_page_after_an_unknown_entry_is_empty(subject: Subject) -> None:
    subject.driver.control.record_audit([_entry()])

    assert _audit_ids(subject, limit=10, before=new_token()) == []


def test_old_audit_entries_are_pruned_oldest_first_up_to_the_limit(subject: Subject) -> None:
    for _ in range(4):
        subject.driver.control.record_audit([_entry()])
        subject.advance(TICK)
    newest = _audit_ids(subject, limit=10)

    counts, left = [], []
    for _ in range(3):
        counts.append(subject.driver.maintenance.prune_audit(older_than=2 * TICK, limit=2))
        left.append(_audit_ids(subject, limit=10))

    assert counts == [2, 1, 0]
    assert left == [newest[:2], newest[:1], newest[:1]]


def _entry(**fields: Any) -> AuditEntry:
    defaults: dict[str, Any] = {"id": new_token(), "actor": "ann", "action": "cancel", "target": "job 1"}
    return AuditEntry(**defaults | fields)


def _audit_ids(subject: Subject, *, limit: int, before: Token | None = None, **wanted: str) -> list[Token]:
    return [entry.id for entry in subject.driver.inspector.audit(limit=limit, before=before, **wanted)]


def test_an_api_key_is_stored_unchanged(subject: Subject) -> None:
    key = api_key("k1", scopes=("jobs:read", "jobs:write"), expires_at=LONG_AGO + _YEAR)
    bare = api_key("k2", name="", digest=b"\x00\xff", scopes=())

    answers = subject.driver.control.add_keys([key, bare])

    assert answers == [True, True]
    assert subject.driver.inspector.keys() == {"k1": key, "k2": bare}


def test_adding_a_key_under_an_existing_id_keeps_the_first_key(subject: Subject) -> None:
    first = api_key("k1", digest=b"first")
    subject.driver.control.add_keys([first])

    answers = subject.driver.control.add_keys([api_key("k1", digest=b"second"), api_key("k2")])

    assert answers == [False, True]
    assert subject.driver.inspector.keys(["k1"]) == {"k1": first}


def test_a_revoked_key_records_when_it_was_revoked(subject: Subject) -> None:
    key = api_key("k1")
    subject.driver.control.add_keys([key])
    subject.advance(TICK)

    answers = subject.driver.control.revoke_keys(["k1", "unknown"])

    assert answers == [True, False]
    assert subject.driver.inspector.keys() == {"k1": replace(key, revoked_at=subject.clock.now())}


def test_a_key_is_revoked_once(subject: Subject) -> None:
    subject.driver.control.add_keys([api_key("k1")])
    subject.driver.control.revoke_keys(["k1"])
    before = subject.driver.inspector.keys()
    subject.advance(TICK)

    answers = subject.driver.control.revoke_keys(["k1"])

    assert (answers, subject.driver.inspector.keys()) == ([False], before)


def test_a_key_is_revoked_with_the_sessions_made_from_it(subject: Subject) -> None:
    keys = [api_key("k1"), api_key("k2"), api_key("s1", parent="k1"), api_key("s2", parent="k2")]
    subject.driver.control.add_keys(keys)
    before = subject.driver.inspector.keys()

    assert subject.driver.control.revoke_keys(["k1"]) == [True]

    revoked = {each: replace(before[each], revoked_at=subject.clock.now()) for each in ("k1", "s1")}
    assert before == {each.id: each for each in keys}
    assert subject.driver.inspector.keys() == before | revoked


def test_adding_a_session_removes_only_expired_sessions(subject: Subject) -> None:
    now = subject.clock.now()
    lasting = [api_key("k1"), api_key("k2", expires_at=now + TICK), api_key("s1", parent="k1")]
    lasting += [api_key("s2", parent="k1", expires_at=now + 2 * TICK)]
    subject.driver.control.add_keys([*lasting, api_key("s3", parent="k1", expires_at=now + TICK)])
    subject.advance(TICK)
    subject.driver.control.add_keys([api_key("k3")])
    before = [*subject.driver.inspector.keys()]

    subject.driver.control.add_keys([api_key("s4", parent="k1")])

    assert before == ["k1", "k2", "k3", "s1", "s2", "s3"]
    assert [*subject.driver.inspector.keys()] == ["k1", "k2", "k3", "s1", "s2", "s4"]


def test_a_revoked_key_cannot_be_added_again(subject: Subject) -> None:
    subject.driver.control.add_keys([api_key("k1")])
    subject.driver.control.revoke_keys(["k1"])
    before = subject.driver.inspector.keys()

    answers = subject.driver.control.add_keys([api_key("k1")])

    assert (answers, subject.driver.inspector.keys()) == ([False], before)


def test_the_last_use_of_a_key_is_kept(subject: Subject) -> None:
    used, idle = api_key("k1"), api_key("k2")
    subject.driver.control.add_keys([used, idle])
    subject.advance(TICK)
    subject.driver.control.note_key_use(["k1", "unknown"])
    subject.advance(TICK)

    subject.driver.control.note_key_use(["k1"])

    assert subject.driver.inspector.keys() == {"k1": replace(used, used_at=subject.clock.now()), "k2": idle}


def test_a_use_leaves_a_revoked_key_revoked(subject: Subject) -> None:
    subject.driver.control.add_keys([api_key("k1")])
    subject.driver.control.revoke_keys(["k1"])
    [revoked] = subject.driver.inspector.keys().values()

    subject.driver.control.note_key_use(["k1"])

    assert subject.driver.inspector.keys(["k1"]) == {"k1": replace(revoked, used_at=subject.clock.now())}


def test_api_keys_are_listed_by_id(subject: Subject) -> None:
    subject.driver.control.add_keys([api_key(key_id) for key_id in ("k2", "k3", "k1")])

    assert list(subject.driver.inspector.keys()) == ["k1", "k2", "k3"]


def test_only_the_requested_keys_are_returned(subject: Subject) -> None:
    subject.driver.control.add_keys([api_key(key_id) for key_id in ("k1", "k2", "k3")])

    assert list(subject.driver.inspector.keys(["k3", "unknown", "k1"])) == ["k1", "k3"]
    assert subject.driver.inspector.keys([]) == {}


def api_key(key_id: str, **fields: Any) -> ApiKey:
    defaults: dict[str, Any] = {"name": "deploy", "digest": b"digest", "scopes": ("read",), "created_at": LONG_AGO}
    return ApiKey(id=key_id, **defaults | fields)


def test_a_duty_can_be_claimed_again_when_its_period_ends(subject: Subject) -> None:
    at_first = _claim_duty(subject)
    subject.advance(_MINUTE - TICK)
    within = _claim_duty(subject)
    subject.advance(TICK)
    after = _claim_duty(subject)

    assert (at_first, within, after) == (True, False, True)


def test_the_next_time_of_each_claimed_duty_is_returned(subject: Subject) -> None:
    before = subject.driver.inspector.duties()
    now = subject.driver.inspector.now()
    _claim_duty(subject, "prune")
    subject.advance(TICK)
    _claim_duty(subject, "expire")

    assert before == {}
    assert subject.driver.inspector.duties() == {"expire": now + TICK + _MINUTE, "prune": now + _MINUTE}


def test_each_duty_has_its_own_period(subject: Subject) -> None:
    _claim_duty(subject, "prune")

    answer = _claim_duty(subject, "expire")

    assert answer is True


def test_concurrent_claims_of_a_duty_have_one_winner(subject: Subject) -> None:
    answers = race(lambda _: _claim_duty(subject))

    assert sum(answers) == 1


def test_pausing_a_paused_queue_returns_false_and_changes_nothing(subject: Subject) -> None:
    subject.driver.control.pause(["default"], by="ann")
    [before] = subject.queues()
    subject.advance(TICK)

    answers = subject.driver.control.pause(["mail", "default"], by="bob")

    assert answers == [True, False]
    assert before in subject.queues()


def test_a_pause_has_a_reason_and_ends_by_itself(subject: Subject) -> None:
    control, until = subject.driver.control, subject.clock.now() + _HOUR
    control.pause(["mail"], by="ann", reason="the server is down", lasts=_HOUR)
    control.pause(["images"], by="ann")

    subject.advance(_HOUR - TICK)
    assert subject.driver.maintenance.resume_paused() == []
    images, mail = subject.driver.inspector.queues()
    assert (mail.paused_reason, mail.paused_until) == ("the server is down", until)
    assert (images.paused_reason, images.paused_until) == ("", None)

    subject.advance(TICK)
    assert subject.driver.maintenance.resume_paused() == ["mail"]
    assert [queue.name for queue in subject.driver.inspector.queues()] == ["images"]
    assert subject.driver.maintenance.resume_paused() == []


def test_resuming_a_queue_returns_whether_it_was_paused(subject: Subject) -> None:
    subject.driver.control.pause(["default"], by="ann")

    answers = subject.driver.control.resume(["mail", "default"]), subject.driver.control.resume(["default"])

    assert answers == ([False, True], [False])


def test_a_running_job_of_a_paused_queue_can_finish(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.driver.control.pause(["default"], by="ann")

    [extended] = subject.driver.extend([claim.lease], lease=LEASE)
    settled = subject.settle(claim, Outcome.ack())

    assert isinstance(extended, Extended)
    assert settled == Settled(claim.job.id, Status.SUCCEEDED)


def test_ended_jobs_are_counted_by_minute_queue_and_state(subject: Subject) -> None:
    minute = _this_minute(subject)
    for status in (Status.SUCCEEDED, Status.SUCCEEDED, Status.DEAD, Status.FAILED):
        subject.bring(status)
    subject.bring(Status.CANCELED, queue="mail")
    subject.advance(minute + _MINUTE - subject.clock.now() - TICK)
    subject.bring(Status.CANCELED)
    subject.advance(TICK)
    subject.bring(Status.CANCELED)

    finished = _finished(subject, since=minute)

    assert finished == [
        FinishedCount(minute=minute, queue="default", status=Status.CANCELED, count=1),
        FinishedCount(minute=minute, queue="default", status=Status.DEAD, count=1),
        FinishedCount(minute=minute, queue="default", status=Status.SUCCEEDED, count=2),
        FinishedCount(minute=minute, queue="mail", status=Status.CANCELED, count=1),
        FinishedCount(minute=minute + _MINUTE, queue="default", status=Status.CANCELED, count=1),
    ]


def test_only_minutes_that_begin_at_the_asked_time_or_later_are_counted(subject: Subject) -> None:
    subject.bring(Status.SUCCEEDED)
    minute = _this_minute(subject)

    answers = [_finished(subject, since=since) for since in (minute, minute + TICK)]

    assert answers == [[FinishedCount(minute=minute, queue="default", status=Status.SUCCEEDED, count=1)], []]


def test_the_newest_minutes_of_a_queue_are_returned_oldest_first(subject: Subject) -> None:
    minute = _this_minute(subject)
    for _ in range(4):
        subject.bring(Status.CANCELED)
        subject.bring(Status.CANCELED, queue="mail")
        subject.bring(Status.CANCELED, queue="zoo")
        subject.advance(_MINUTE)
    subject.driver.maintenance.roll_up(keep=_HOUR)
    finished = partial(subject.driver.inspector.finished_counts, since=minute)

    assert [(each.minute, each.queue) for each in finished(limit=2)] == [
        (minute + 3 * _MINUTE, "mail"),
        (minute + 3 * _MINUTE, "zoo"),
    ]
    assert [(each.minute, each.queue) for each in finished(queue="mail", limit=3)] == [
        (minute + n * _MINUTE, "mail") for n in (1, 2, 3)
    ]
    assert [each.queue for each in finished(queue="mail")] == ["mail"] * 4
    assert finished(limit=0) == []


def test_minutes_older_than_what_is_kept_are_dropped_and_counted(subject: Subject) -> None:
    minute = _this_minute(subject)
    subject.bring(Status.SUCCEEDED)
    subject.bring(Status.CANCELED, queue="mail")
    subject.advance(_MINUTE)
    subject.bring(Status.SUCCEEDED)
    everything = _finished(subject, since=minute)

    subject.advance(minute + _HOUR - subject.clock.now())
    just_kept = subject.driver.maintenance.roll_up(keep=_HOUR), _finished(subject, since=minute)
    subject.advance(TICK)
    dropped = subject.driver.maintenance.roll_up(keep=_HOUR), _finished(subject, since=minute)

    assert just_kept == (0, everything)
    assert dropped == (1, everything[2:])


def _claim_duty(subject: Subject, name: str = "prune") -> bool:
    return subject.driver.maintenance.claim_duty(name, every=_MINUTE)


def _this_minute(subject: Subject) -> datetime:
    return subject.clock.now().replace(second=0, microsecond=0)


def _finished(subject: Subject, *, since: datetime) -> list[FinishedCount]:
    """Return the counts in a fixed order; the contract does not define one."""
    counts = subject.finished(since=since)
    return sorted(counts, key=lambda each: (each.minute, each.queue, each.status))
