"""Notes of the processes that send and receive messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taskharbor.core.messages import NOTE_INTERVAL, DeliveryNote, DeliveryRole
from taskharbor.testing.conformance.statement_counts import BATCH, count

if TYPE_CHECKING:
    from taskharbor.testing.conformance.subject import Subject

_SENDS: Final = DeliveryNote(queue="mail", role=DeliveryRole.SENDER)
_RECEIVES: Final = DeliveryNote(queue="mail", role=DeliveryRole.RECEIVER, problem="access denied")


def test_a_queue_without_messages_has_no_notes(subject: Subject) -> None:
    subject.driver.remember("codec", "json")

    assert subject.driver.inspector.delivery("mail") == []


def test_a_note_has_the_time_at_which_the_store_recorded_it(subject: Subject) -> None:
    subject.driver.maintenance.record_delivery([_SENDS])

    assert subject.driver.inspector.delivery("mail") == [replace(_SENDS, seen_at=subject.clock.now())]


def test_notes_of_two_roles_are_independent(subject: Subject) -> None:
    sent_at = subject.clock.now()
    subject.driver.maintenance.record_delivery([_SENDS])
    subject.advance(NOTE_INTERVAL)
    subject.driver.maintenance.record_delivery([_RECEIVES])

    notes = {note.role: note for note in subject.driver.inspector.delivery("mail")}

    assert notes == {
        DeliveryRole.SENDER: replace(_SENDS, seen_at=sent_at),
        DeliveryRole.RECEIVER: replace(_RECEIVES, seen_at=subject.clock.now()),
    }


def test_a_newer_note_replaces_time_and_problem(subject: Subject) -> None:
    for problem in ("queue not found", "", 'it\'s "odd" %s\n\x00 ä\ud800'):
        newer = replace(_SENDS, problem=problem)
        subject.advance(NOTE_INTERVAL)
        subject.driver.maintenance.record_delivery([newer])

        assert subject.driver.inspector.delivery("mail") == [replace(newer, seen_at=subject.clock.now())]


def test_notes_of_other_queues_are_not_returned(subject: Subject) -> None:
    subject.driver.maintenance.record_delivery([replace(_SENDS, queue=queue) for queue in ("mail", "mails", "MAIL")])

    assert [note.queue for note in subject.driver.inspector.delivery("mail")] == ["mail"]


def test_notes_of_many_queues_are_recorded_in_one_statement(subject: Subject) -> None:
    notes = [replace(_SENDS, queue=f"q{number}") for number in range(BATCH)]

    assert count(subject, lambda: subject.driver.maintenance.record_delivery(notes)) == 1
    assert len(subject.driver.inspector.delivery("q7")) == 1
