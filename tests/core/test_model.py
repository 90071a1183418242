from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.core.codec import JsonCodec
from taskharbor.core.errors import PayloadNotDecodable
from taskharbor.core.ids import JobId, new_job_id
from taskharbor.core.model import DeadTaskEvent, Job, NewJob, OutboxRow, Schedule, payload_context
from taskharbor.core.states import Status

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
JOB: Final = JobId(UUID(int=7))
CANARY: Final = b"hunter2"


class CountingCodec:
    """A JSON codec that records its calls of `decode`."""

    def __init__(self) -> None:
        self.read: list[tuple[bytes, bytes]] = []
        self._json = JsonCodec()

    def encode(self, value: object, *, context: bytes) -> bytes:
        return self._json.encode(value, context=context)

    def decode(self, data: bytes, *, context: bytes) -> Any:
        self.read.append((data, context))
        return self._json.decode(data, context=context)

    def digest(self, value: object) -> bytes:
        return self._json.digest(value)


def job(**fields: Any) -> Job:
    defaults: dict[str, Any] = {
        "id": JOB,
        "type": "greet",
        "queue": "default",
        "priority": 0,
        "payload": b'{"name":"Ada"}',
        "status": Status.PENDING,
        "scheduled_for": NOW,
        "timeout": None,
        "created_at": NOW,
        "attempt_count": 0,
        "max_attempts": 3,
    }
    return Job(**defaults | fields)


class BoundCodec(JsonCodec):
    """A codec of its own that inherits from the default one, and binds payloads to their context."""

    def decode(self, data: bytes, *, context: bytes) -> Any:
        return context, super().decode(data, context=context)


def test_a_codec_that_extends_the_default_one_gets_the_context_of_the_job() -> None:
    assert job(codec=BoundCodec()).data == (payload_context(JOB, "greet"), {"name": "Ada"})


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        job().status = Status.SUCCEEDED  # type: ignore[misc]


def test_the_data_of_a_job_is_its_payload_decoded() -> None:
    assert job().data == {"name": "Ada"}


def test_the_payload_is_decoded_lazily_with_its_context() -> None:
    codec = CountingCodec()
    made = job(codec=codec)
    before = list(codec.read)

    data = made.data

    assert before == []
    assert data == {"name": "Ada"}
    assert codec.read == [(made.payload, payload_context(JOB, "greet"))]


@pytest.mark.parametrize("payload", [b'{"name":"Ada"}', b"null", b"0"])
def test_the_payload_is_decoded_once(payload: bytes) -> None:
    codec = CountingCodec()
    made = job(payload=payload, codec=codec)

    first, second = made.data, made.data

    assert first is second
    assert len(codec.read) == 1


def test_a_job_with_another_payload_has_other_data() -> None:
    made = job()
    assert made.data == {"name": "Ada"}

    other = replace(made, payload=b'{"name":"Grace"}')

    assert other.data == {"name": "Grace"}
    assert made.data == {"name": "Ada"}


@pytest.mark.parametrize("decoded", [True, False])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_job_has_the_same_data(duplicate: Any, decoded: bool) -> None:
    made = job()
    assert not decoded or made.data

    assert duplicate(made).data == {"name": "Ada"}


def test_an_undecodable_payload_raises_on_every_access() -> None:
    made = job(payload=b"\xff")

    for _ in range(2):
        with pytest.raises(PayloadNotDecodable):
            _ = made.data


def test_jobs_are_equal_whether_their_data_was_read_or_not() -> None:
    one, other = job(), job(codec=CountingCodec())
    assert one.data

    assert one == other


def test_a_job_shows_neither_payload_nor_result_nor_data() -> None:
    made = job(payload=b'"hunter2"', result=CANARY)
    assert made.data == "hunter2"

    assert "hunter2" not in repr(made)


def test_a_new_job_and_a_schedule_do_not_show_their_payload() -> None:
    new = NewJob(id=JOB, type="greet", queue="default", payload=CANARY, created_at=NOW, max_attempts=3, digest=CANARY)
    schedule = Schedule(name="daily", cron="0 0 * * *", timezone="UTC", type="greet", queue="default", payload=CANARY)

    assert "hunter2" not in repr(new) + repr(schedule)


@pytest.mark.parametrize(("attempts", "exhausted"), [(0, False), (2, False), (3, True), (4, True)])
def test_a_job_is_exhausted_when_its_attempts_reach_the_maximum(attempts: int, exhausted: bool) -> None:
    assert job(attempt_count=attempts, max_attempts=3).is_exhausted == exhausted


@settings(max_examples=100, deadline=None)
@given(st.tuples(st.uuids(), st.text("ab:/", max_size=4)), st.tuples(st.uuids(), st.text("ab:/", max_size=4)))
def test_payloads_of_different_jobs_or_types_have_different_contexts(
    one: tuple[UUID, str], other: tuple[UUID, str]
) -> None:
    contexts = [payload_context(JobId(job_id), job_type) for job_id, job_type in (one, other)]

    assert (contexts[0] == contexts[1]) == (one == other)


def test_the_payload_context_contains_the_job_id_and_type() -> None:
    contexts = {payload_context(job_id, kind) for job_id in (JOB, new_job_id()) for kind in ("greet", "part")}

    assert len(contexts) == 4


def event(*, life: int = 1, job_id: JobId = JOB) -> DeadTaskEvent:
    return DeadTaskEvent(
        job_id=job_id,
        life=life,
        type="greet",
        queue="default",
        worker_id="worker",
        attempt_count=3,
        max_attempts=3,
        error="ValueError: boom",
        dead_at=NOW,
    )


def test_repeats_of_an_event_have_the_same_event_id() -> None:
    assert event().event_id == event().event_id == "00000000-0000-0000-0000-000000000007:1"


def test_each_life_and_job_has_its_own_event_id() -> None:
    ids = {event(life=life, job_id=job_id).event_id for life in (1, 2, 11) for job_id in (JOB, new_job_id())}

    assert len(ids) == 6


@pytest.mark.parametrize(
    ("fields", "done"),
    [
        ({}, False),
        ({"attempts": 5, "last_error": "no route"}, False),
        ({"published_at": NOW}, True),
        ({"given_up_at": NOW}, True),
    ],
)
def test_an_event_is_done_when_it_was_published_or_given_up(fields: dict[str, Any], done: bool) -> None:
    row = OutboxRow(event=event(), next_at=NOW + timedelta(minutes=1), **fields)

    assert row.is_done == done
