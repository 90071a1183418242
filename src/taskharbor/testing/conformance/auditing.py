"""What people and keys did is written down once, and read newest first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from taskharbor.core.ids import new_token
from taskharbor.core.model import AuditEntry
from taskharbor.testing.conformance.subject import LONG_AGO, TICK, Subject

if TYPE_CHECKING:
    from taskharbor.core.ids import Token


def test_what_was_done_is_kept_as_it_was_told(subject: Subject) -> None:
    entry = _entry(actor="key:k1", action="requeue", target="job 7", detail={"why": "fixed", "ä": '"…"'})

    subject.driver.control.record_audit([entry])

    assert subject.driver.inspector.audit(limit=10) == [replace(entry, at=subject.clock.now())]


def test_the_store_says_when_something_was_done(subject: Subject) -> None:
    subject.driver.control.record_audit([_entry(at=LONG_AGO)])

    [entry] = subject.driver.inspector.audit(limit=10)

    assert entry.at == subject.clock.now()


def test_what_is_written_down_cannot_be_changed(subject: Subject) -> None:
    detail = {"why": "fixed"}
    entry = _entry(detail=detail)
    subject.driver.control.record_audit([entry])
    before = [replace(entry, at=subject.clock.now(), detail={"why": "fixed"})]
    subject.advance(TICK)

    detail["why"] = "no reason"
    subject.driver.control.record_audit([replace(entry, actor="somebody else"), _entry()])

    assert subject.driver.inspector.audit(limit=10)[1:] == before


def test_what_was_done_last_is_told_first(subject: Subject) -> None:
    ids = sorted(new_token() for _ in range(3))
    for entry_id in (ids[1], ids[2], ids[0]):
        subject.driver.control.record_audit([_entry(id=entry_id)])
        subject.advance(TICK)

    assert _told(subject, limit=10) == [ids[0], ids[2], ids[1]]


def test_pages_of_the_audit_hold_every_entry_once(subject: Subject) -> None:
    subject.driver.control.record_audit([_entry() for _ in range(3)])
    subject.advance(TICK)
    subject.driver.control.record_audit([_entry() for _ in range(2)])
    everything = _told(subject, limit=10)

    first = _told(subject, limit=2)
    second = _told(subject, limit=2, before=first[-1])
    third = _told(subject, limit=2, before=second[-1])

    assert (first + second + third, len(set(everything))) == (everything, 5)
    assert _told(subject, limit=2, before=third[-1]) == []


def test_nothing_lies_below_an_entry_that_is_not_there(subject: Subject) -> None:
    subject.driver.control.record_audit([_entry()])

    assert _told(subject, limit=10, before=new_token()) == []


def test_entries_that_are_old_enough_go_oldest_first_and_no_more_than_asked_for(subject: Subject) -> None:
    for _ in range(4):
        subject.driver.control.record_audit([_entry()])
        subject.advance(TICK)
    newest = _told(subject, limit=10)

    counts, left = [], []
    for _ in range(3):
        counts.append(subject.driver.maintenance.prune_audit(older_than=2 * TICK, limit=2))
        left.append(_told(subject, limit=10))

    assert counts == [2, 1, 0]
    assert left == [newest[:2], newest[:1], newest[:1]]


def _entry(**fields: Any) -> AuditEntry:
    defaults: dict[str, Any] = {"id": new_token(), "actor": "ann", "action": "cancel", "target": "job 1"}
    return AuditEntry(**defaults | fields)


def _told(subject: Subject, *, limit: int, before: Token | None = None) -> list[Token]:
    return [entry.id for entry in subject.driver.inspector.audit(limit=limit, before=before)]
