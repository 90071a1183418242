"""Frames between a worker and its children."""

from __future__ import annotations

import socket
import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId, Token, new_token
from taskharbor.core.model import Job, Progress
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.worker.isolation.messages import job_of_values, job_values, outcome_from_message, outcome_message
from taskharbor.worker.isolation.wire import MAX_BODY_BYTES, FrameTooLarge, Wire

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ends() -> Iterator[tuple[Wire, Wire]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    with ours, theirs:
        yield Wire(ours), Wire(theirs)


def test_frames_arrive_whole_and_in_order(ends: tuple[Wire, Wire]) -> None:
    ours, theirs = ends

    for number in range(3):
        ours.send({"number": number, "text": "é"}, b"\x00" * number)
    ours.close()

    assert [theirs.receive() for _ in range(4)] == [
        *(({"number": number, "text": "é"}, b"\x00" * number) for number in range(3)),
        None,
    ]


def test_a_frame_that_is_too_large_is_neither_sent_nor_read(ends: tuple[Wire, Wire]) -> None:
    ours, theirs = ends

    with pytest.raises(FrameTooLarge):
        ours.send({}, b"x" * (MAX_BODY_BYTES + 1))
    ours.socket.sendall(struct.pack("!II", 2**32 - 1, 0))

    with pytest.raises(FrameTooLarge):
        theirs.receive()


@pytest.mark.parametrize("text", [b"[]", b"\xff", b"{", b"1", b"[" * 5_000])
def test_a_frame_that_is_no_object_is_refused(ends: tuple[Wire, Wire], text: bytes) -> None:
    ours, theirs = ends

    ours.socket.sendall(struct.pack("!II", len(text), 0) + text)

    with pytest.raises(ValueError):  # noqa: PT011  of different messages
        theirs.receive()


def test_a_job_arrives_with_all_of_its_fields() -> None:
    now = datetime(2024, 2, 29, 12, 30, 0, 123_456, tzinfo=UTC)
    job = Job(
        id=JobId(new_token()),
        type="resize",
        queue="images",
        priority=3,
        status=Status.PROCESSING,
        scheduled_for=now,
        timeout=timedelta(seconds=1.5),
        created_at=now - timedelta(days=1),
        attempt_count=2,
        max_attempts=5,
        last_error="é",
        failed_at=now,
        lease_token=Token(new_token()),
        lease_expires_at=now + timedelta(seconds=30),
        worker_id="w",
        processing_started_at=now,
        life=2,
        sends=1,
        idempotency_key="k",
        progress=Progress(1, 2, "half"),
        metadata={"tenant": "a"},
        payload=b"[1]",
    )

    assert job_of_values(job_values(job), b"[1]") == job


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome.ack(),
        Outcome.ack(b"1"),
        Outcome.retry(after=timedelta(seconds=3), failure=Failure(type="E", message="m", traceback="t")),
        Outcome.fail("reason", failure=Failure(type="E", fingerprint="f")),
        Outcome.fail("reason"),
        Outcome.snooze(after=timedelta(milliseconds=1)),
        Outcome.cancel("why"),
        Outcome.cancel(),
        Outcome.release(),
    ],
)
def test_an_outcome_arrives_as_it_was_decided(outcome: Outcome) -> None:
    assert outcome_from_message(outcome_message(outcome), outcome.result) == outcome
