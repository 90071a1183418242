from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import UUID

import pytest

from taskharbor import Client, Enqueued, Harbor, JobRequest, JsonCodec, MemoryDriver, Status
from taskharbor.core.errors import (
    CodecMismatch,
    EnqueueRefused,
    IdempotencyConflict,
    InvalidRequest,
    PayloadNotDecodable,
    StoreUnavailable,
    UsageError,
)
from taskharbor.core.hooks import JobsEnqueued
from taskharbor.core.ids import JobId, new_job_id
from taskharbor.core.model import Job, NewJob
from taskharbor.core.request import ATTEMPTS_RANGE
from taskharbor.core.results import JobFilter
from taskharbor.crypto import AesGcmCodec
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.testing.clock import ManualClock
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from taskharbor.core.codec import Codec
    from taskharbor.core.hooks import HookEvent

HOUR: Final = timedelta(hours=1)
NOW: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Autumn(tzinfo):
    """A time zone whose clock is being set back by an hour."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        return HOUR if when is None or when.fold else 2 * HOUR

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> None:
        return None


class ClientRig:
    """A client and its memory store, with one clock."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock(NOW)
        self.driver = MemoryDriver(clock=self.clock)
        self.client = Client(self.driver, **{"clock": self.clock} | options)

    def enqueue(self, **fields: Any) -> Enqueued:
        return self.client.enqueue(request(**fields))

    def stored(self, job_id: JobId) -> Job:
        return self.driver.inspector.get([job_id])[job_id]

    def all(self) -> list[Job]:
        """Return every stored job, oldest first."""
        found = self.driver.inspector.find(JobFilter(), limit=100).jobs
        return [*self.driver.inspector.get([job.id for job in reversed(found)]).values()]


def request(**fields: Any) -> JobRequest:
    return JobRequest(**{"type": "greet"} | fields)


@pytest.fixture(name="rig")
def default_rig() -> ClientRig:
    return ClientRig()


def test_a_minimal_request_becomes_a_due_job_with_all_defaults(rig: ClientRig) -> None:
    answer = rig.enqueue()

    assert not answer.existed
    assert rig.all() == [
        Job(
            id=answer.id,
            type="greet",
            queue="default",
            priority=0,
            payload=b"null",
            status=Status.PENDING,
            scheduled_for=NOW,
            timeout=None,
            created_at=NOW,
            attempt_count=0,
            max_attempts=20,
        )
    ]


def test_all_fields_of_a_request_are_stored(rig: ClientRig) -> None:
    answer = rig.enqueue(
        payload={"name": "Ada"},
        queue="mail",
        delay=HOUR,
        timeout=timedelta(seconds=30),
        max_attempts=7,
        priority=-5,
        idempotency_key="welcome-7",
        metadata={"tenant": "acme"},
    )

    job = rig.stored(answer.id)
    assert (job.type, job.data) == ("greet", {"name": "Ada"})
    assert (job.queue, job.priority, job.max_attempts) == ("mail", -5, 7)
    assert (job.scheduled_for, job.timeout) == (NOW + HOUR, timedelta(seconds=30))
    assert (job.idempotency_key, job.metadata) == ("welcome-7", {"tenant": "acme"})


def test_a_job_gets_a_uuid_that_sorts_by_time(rig: ClientRig) -> None:
    ids = [rig.enqueue().id for _ in range(10)]

    assert {job_id.version for job_id in ids} == {7}
    assert ids == sorted(ids)


def test_a_request_without_max_attempts_gets_those_of_the_client() -> None:
    rig = ClientRig(max_attempts=4)

    bare, own = rig.enqueue(), rig.enqueue(max_attempts=1)

    assert [rig.stored(answer.id).max_attempts for answer in (bare, own)] == [4, 1]


@pytest.mark.parametrize("attempts", [0, 2.5, True, "3", ATTEMPTS_RANGE[-1] + 1])
def test_attempts_out_of_their_range_are_refused_by_client_and_harbor(attempts: Any) -> None:
    for make in (Client, Harbor):
        with pytest.raises(UsageError, match=f"max_attempts is {attempts!r}: must be"):
            make(MemoryDriver(), max_attempts=attempts)


def test_created_at_uses_the_clients_clock_and_due_times_the_stores() -> None:
    rig = ClientRig(clock=ManualClock(NOW - HOUR))

    job = rig.stored(rig.enqueue(delay=HOUR).id)

    assert job.created_at == NOW - HOUR
    assert job.scheduled_for == NOW + HOUR


def test_without_a_clock_the_system_clock_is_used() -> None:
    driver = MemoryDriver()
    before = datetime.now(UTC)

    answer = Client(driver).enqueue(request())

    assert before <= driver.inspector.get([answer.id])[answer.id].created_at <= datetime.now(UTC)


def test_a_scheduled_time_in_another_time_zone_is_stored_in_utc(rig: ClientRig) -> None:
    there = datetime(2030, 6, 1, 9, tzinfo=timezone(-4 * HOUR))

    job = rig.stored(rig.enqueue(scheduled_for=there).id)

    assert job.scheduled_for == datetime(2030, 6, 1, 13, tzinfo=UTC)
    assert job.scheduled_for.tzinfo is UTC


def test_the_repeated_hour_in_autumn_is_distinguished_by_fold(rig: ClientRig) -> None:
    first = datetime(2030, 10, 27, 2, 30, tzinfo=Autumn())

    jobs = [rig.stored(rig.enqueue(scheduled_for=first.replace(fold=fold)).id) for fold in (0, 1)]

    assert jobs[1].scheduled_for - jobs[0].scheduled_for == HOUR


def test_a_scheduled_time_in_the_past_is_stored_unchanged(rig: ClientRig) -> None:
    job = rig.stored(rig.enqueue(scheduled_for=NOW - HOUR).id)

    assert job.scheduled_for == NOW - HOUR


def test_later_changes_of_the_payload_do_not_change_the_job(rig: ClientRig) -> None:
    payload, metadata = {"name": "Ada"}, {"tenant": "acme"}
    answer = rig.enqueue(payload=payload, metadata=metadata)

    payload["name"], metadata["tenant"] = "Eve", "evil"

    job = rig.stored(answer.id)
    assert (job.data, job.metadata) == ({"name": "Ada"}, {"tenant": "acme"})


def test_a_repeated_request_with_a_key_returns_the_first_job(rig: ClientRig) -> None:
    repeated = request(payload=[1], idempotency_key="welcome-7")

    first, second = rig.client.enqueue(repeated), rig.client.enqueue(repeated)

    assert (first.existed, second) == (False, Enqueued(first.id, existed=True))
    assert len(rig.all()) == 1


def test_without_a_key_the_same_request_makes_another_job(rig: ClientRig) -> None:
    first, second = rig.enqueue(), rig.enqueue()

    assert first.id != second.id
    assert not second.existed


def test_the_order_of_keys_in_a_payload_does_not_matter(rig: ClientRig) -> None:
    rig.enqueue(payload={"a": 1, "b": [{"c": 2, "d": 3}]}, idempotency_key="k")

    again = rig.enqueue(payload={"b": [{"d": 3, "c": 2}], "a": 1}, idempotency_key="k")

    assert again.existed


def test_a_repeat_may_differ_in_everything_but_type_and_payload(rig: ClientRig) -> None:
    rig.enqueue(idempotency_key="k")

    again = rig.enqueue(
        idempotency_key="k", delay=HOUR, priority=1, max_attempts=1, timeout=HOUR, metadata={"try": "2"}
    )

    assert again.existed
    assert rig.all()[0].scheduled_for == NOW


@pytest.mark.parametrize("other", [{"payload": {"name": "Eve"}}, {"payload": None}, {"type": "part"}])
def test_a_key_is_refused_for_another_payload_or_type(rig: ClientRig, other: dict[str, Any]) -> None:
    held = {"payload": {"name": "Ada"}, "idempotency_key": "welcome-7"}
    first = rig.enqueue(**held)

    with pytest.raises(IdempotencyConflict) as caught:
        rig.enqueue(**held | other)

    assert (caught.value.key, caught.value.holder) == ("welcome-7", first.id)
    assert [job.id for job in rig.all()] == [first.id]


def test_a_key_belongs_to_its_queue(rig: ClientRig) -> None:
    first = rig.enqueue(queue="mail", idempotency_key="k", payload=1)

    second = rig.enqueue(queue="reports", idempotency_key="k", payload=2)

    assert not second.existed
    assert second.id != first.id


REFUSED: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "blank type": ({"type": ""}, "type is '': must match"),
    "bad queue characters": ({"queue": "e mail"}, "queue is 'e mail': must match"),
    "negative timeout": ({"timeout": -HOUR}, "timeout is -1 day, 23:00:00: must be above 0 and at most 366 days"),
    "naive datetime": (
        {"scheduled_for": NOW.replace(tzinfo=None)},
        "scheduled_for is datetime.datetime(2030, 1, 1, 12, 0): needs a time zone",
    ),
    "10 KB key": ({"idempotency_key": "k" * 10_240}, "idempotency_key is 'kkk"),
    "no attempts": ({"max_attempts": 0}, "max_attempts is 0: must be from 1 to 1,000,000"),
    "2 MiB payload": (
        {"payload": {"blob": "x" * 2_097_152}},
        "payload is not storable: 2,097,163 bytes encoded, the limit is 1,048,576",
    ),
    "non-JSON value deep inside": (
        {"payload": {"items": [{"price": 1}, {"price": object()}]}},
        "payload.items[1].price is not storable: object has no JSON form",
    ),
    "NaN deep inside": (
        {"payload": {"items": [{"price": float("nan")}]}},
        "payload.items[0].price is not storable: not a finite number",
    ),
    "lone surrogate": ({"payload": ["\ud800"]}, "payload[0] is not storable: a lone surrogate"),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_input_is_refused_with_field_value_and_rule(
    rig: ClientRig, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rig.enqueue(**fields)

    assert str(caught.value).startswith(message)
    assert rig.all() == []


def test_an_error_does_not_show_the_payload(rig: ClientRig) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rig.enqueue(payload={"password": "hunter2", "bad": float("nan")})

    assert "hunter2" not in str(caught.value)


def test_many_jobs_are_stored_in_one_statement_and_answered_in_order(rig: ClientRig) -> None:
    before = rig.driver.statements

    answers = rig.client.enqueue_many(request(payload=number) for number in range(50))

    assert rig.driver.statements - before == 1
    assert [rig.stored(answer.id).data for answer in answers] == [*range(50)]


def test_enqueue_many_of_nothing_stores_nothing(rig: ClientRig) -> None:
    assert rig.client.enqueue_many([]) == []
    assert rig.all() == []


def test_one_invalid_request_stops_all_and_is_named_by_its_index(rig: ClientRig) -> None:
    batch = [request(), request(), request(queue="e mail", max_attempts=0), request()]

    with pytest.raises(InvalidRequest) as caught:
        rig.client.enqueue_many(batch)

    assert [problem.field for problem in caught.value.problems] == ["jobs[2].queue", "jobs[2].max_attempts"]
    assert rig.all() == []


def test_one_invalid_payload_stops_all_and_is_named_by_its_index(rig: ClientRig) -> None:
    batch = [request(), request(payload={"to": [object()]})]

    with pytest.raises(InvalidRequest) as caught:
        rig.client.enqueue_many(batch)

    assert [problem.field for problem in caught.value.problems] == ["jobs[1].payload.to[0]"]
    assert rig.all() == []


def test_conflicting_keys_are_refused_singly_and_other_jobs_are_stored(rig: ClientRig) -> None:
    held = rig.enqueue(payload="first", idempotency_key="held")
    batch = [
        request(payload=0),
        request(payload=1, idempotency_key="held"),
        request(payload="first", idempotency_key="held"),
        request(payload=3, idempotency_key="free"),
        request(payload=4, idempotency_key="free"),
    ]

    with pytest.raises(EnqueueRefused) as caught:
        rig.client.enqueue_many(batch)

    stored = [job for job in rig.all() if job.id != held.id]
    assert [job.data for job in stored] == [0, 3]
    assert [answer for answer in caught.value.answers if isinstance(answer, Enqueued)] == [
        Enqueued(stored[0].id, existed=False),
        Enqueued(held.id, existed=True),
        Enqueued(stored[1].id, existed=False),
    ]
    assert {index: holder(error) for index, error in caught.value.refused.items()} == {1: held.id, 4: stored[1].id}


def holder(error: Exception) -> JobId | None:
    return error.holder if isinstance(error, IdempotencyConflict) else None


def test_a_hook_is_called_after_a_job_is_stored() -> None:
    calls: list[tuple[HookEvent, bool]] = []
    rig: ClientRig = ClientRig(hooks=[lambda event: calls.append((event, bool(rig.all())))])

    answer = rig.enqueue(queue="mail")

    [(event, is_stored)] = calls
    assert isinstance(event, JobsEnqueued)
    assert [(job.id, job.type, job.queue) for job in event.jobs] == [(answer.id, "greet", "mail")]
    assert ([*event.results], is_stored) == ([answer], True)


def test_a_hook_is_called_for_existing_jobs_but_not_for_refused_ones() -> None:
    events: list[HookEvent] = []
    rig = ClientRig()
    held = rig.enqueue(payload=1, idempotency_key="held")
    watched = Client(rig.driver, clock=rig.clock, hooks=[events.append])

    with pytest.raises(EnqueueRefused):
        watched.enqueue_many([request(payload=n, idempotency_key="held") for n in (1, 2)])

    [event] = events
    assert isinstance(event, JobsEnqueued)
    assert [*event.results] == [Enqueued(held.id, existed=True)]


def test_a_failing_hook_is_logged_and_affects_neither_job_nor_other_hooks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[HookEvent] = []

    def broken(_event: HookEvent) -> NoReturn:
        raise RuntimeError("the metrics are down")

    rig = ClientRig(hooks=[broken, events.append])

    with caplog.at_level(logging.ERROR):
        answer = rig.enqueue()

    assert [job.id for job in rig.all()] == [answer.id]
    assert len(events) == 1
    [record] = caplog.records
    assert record.name == "taskharbor.client"
    assert "the metrics are down" in str(record.exc_info)


class ReversedCodec:
    """A codec that writes the context and reversed JSON."""

    def __init__(self) -> None:
        self._json = JsonCodec()

    def encode(self, value: object, *, context: bytes) -> bytes:
        return context + self._json.encode(value, context=context)[::-1]

    def decode(self, data: bytes, *, context: bytes) -> Any:
        return self._json.decode(data.removeprefix(context)[::-1], context=context)

    def digest(self, value: object) -> bytes:
        return self._json.digest([value])


def test_a_custom_codec_writes_and_reads_the_payload() -> None:
    codec = ReversedCodec()
    rig = ClientRig(codec=codec)

    job = rig.stored(rig.enqueue(payload={"name": "Ada"}).id)

    assert job.payload.endswith(b'}"adA":"eman"{')
    assert replace(job, codec=codec).data == {"name": "Ada"}


class ForgetfulCodec(JsonCodec):
    """A codec that returns no bytes for some values."""

    def encode(self, value: object, *, context: bytes) -> Any:
        return None if value == "forgotten" else super().encode(value, context=context)


def test_a_codec_that_returns_no_bytes_fails_only_its_own_call(tmp_path: Path) -> None:
    async def enqueue_two() -> Enqueued:
        with pytest.raises(InvalidRequest, match="its codec returned a NoneType, not bytes"):
            await asyncio.wait_for(client.aenqueue(JobRequest(type="t", payload="forgotten")), LIMIT_SECONDS)
        return await asyncio.wait_for(client.aenqueue(JobRequest(type="t")), LIMIT_SECONDS)

    with closing(SqliteDriver(tmp_path / "jobs.db")) as driver:
        client = Client(driver, codec=ForgetfulCodec())
        stored = asyncio.run(enqueue_two())

        assert [*driver.inspector.get([stored.id])] == [stored.id]


class SealedCodec(JsonCodec):
    """A codec that reads a payload only with the context of its own job."""

    def encode(self, value: object, *, context: bytes) -> bytes:
        return context + super().encode(value, context=context)

    def decode(self, data: bytes, *, context: bytes) -> Any:
        assert data.startswith(context)
        return super().decode(data.removeprefix(context), context=context)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_subclass_of_the_json_codec_receives_the_context(key: str | None) -> None:
    codec = SealedCodec()
    rig = ClientRig(codec=codec)

    job = rig.stored(rig.enqueue(payload={"name": "Ada"}, idempotency_key=key).id)

    assert job.id.bytes in job.payload
    assert replace(job, codec=codec).data == {"name": "Ada"}


def test_custom_ids_are_used() -> None:
    own = JobId(UUID(int=7))
    rig = ClientRig(ids=lambda: own)

    assert rig.enqueue().id == own


def test_an_encrypted_payload_can_be_read_with_the_key_only() -> None:
    codec = AesGcmCodec({"2030": bytes(range(32))})
    rig = ClientRig(codec=codec)

    job = rig.stored(rig.enqueue(payload={"card": "4111"}).id)

    assert b"4111" not in job.payload
    assert replace(job, codec=codec).data == {"card": "4111"}


def test_encode_binds_a_payload_to_its_job_and_validates_it() -> None:
    codec = AesGcmCodec({"2030": bytes(range(32))})
    rig = ClientRig(codec=codec)
    job, other = (rig.stored(rig.enqueue().id) for _ in range(2))

    payload = rig.client.encode({"card": "4111"}, job.id, job_type=job.type)

    assert replace(job, payload=payload, codec=codec).data == {"card": "4111"}
    with pytest.raises(PayloadNotDecodable):
        _ = replace(other, payload=payload, codec=codec).data
    with pytest.raises(InvalidRequest, match=r"^payload\.price is not storable: not a finite number$"):
        rig.client.encode({"price": float("nan")}, job.id, job_type=job.type)


@pytest.mark.parametrize("codec", [JsonCodec(), ReversedCodec(), AesGcmCodec({"2030": bytes(32)})])
def test_a_repeat_and_a_conflict_are_detected_with_any_codec(codec: Codec) -> None:
    rig = ClientRig(codec=codec)
    first = rig.enqueue(payload={"card": "4111"}, idempotency_key="k")

    again = rig.enqueue(payload={"card": "4111"}, idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        rig.enqueue(payload={"card": "4222"}, idempotency_key="k")

    assert again == Enqueued(first.id, existed=True)


class Queue(StrEnum):
    MAIL = "mail"


class Urgency(IntEnum):
    HIGH = -5


def test_an_enum_member_is_stored_as_its_value() -> None:
    rig = ClientRig()

    enqueued = rig.enqueue(
        type=Queue.MAIL,
        queue=Queue.MAIL,
        priority=Urgency.HIGH,
        idempotency_key=Queue.MAIL,
        metadata={Queue.MAIL: Queue.MAIL},
    )

    job = rig.stored(enqueued.id)
    [(key, value)] = job.metadata.items()
    values = [job.type, job.queue, job.idempotency_key, key, value]
    assert (values, job.priority) == (["mail"] * 5, -5)
    assert {type(each) for each in values} == {str}
    assert type(job.priority) is int


class Unreliable(MemoryDriver):
    """A driver that loses the first inserts, or only the replies to them."""

    def __init__(self, *losses: Exception, commits: bool) -> None:
        super().__init__()
        self.losses, self.commits = [*losses], commits

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        if not self.losses:
            return super().insert(jobs, repeat=repeat)
        if self.commits:
            super().insert(jobs, repeat=repeat)
        raise self.losses.pop(0)


@pytest.mark.parametrize("commits", [True, False])
def test_a_job_whose_reply_was_lost_once_is_stored_once(commits: bool) -> None:
    driver = Unreliable(StoreUnavailable("reply lost"), commits=commits)

    enqueued = Client(driver).enqueue(request())

    assert [job.id for job in driver.inspector.find(JobFilter(), limit=10).jobs] == [enqueued.id]
    assert enqueued.existed == commits


def test_an_insert_is_not_repeated_while_the_store_is_known_unavailable() -> None:
    gone = StoreUnavailable("gone", retry_in=timedelta(seconds=1))
    driver = Unreliable(gone, commits=False)

    with pytest.raises(StoreUnavailable) as failed:
        Client(driver).enqueue(request())

    assert failed.value is gone
    assert not driver.inspector.find(JobFilter(), limit=10).jobs


@pytest.mark.parametrize(("error", "tries"), [(StoreUnavailable("no route"), 2), (OSError("broken pipe"), 1)])
def test_a_store_error_is_raised_unchanged_and_calls_no_hook(error: Exception, tries: int) -> None:
    events: list[HookEvent] = []
    client = Client(Unreliable(*2 * tries * [error], commits=True), hooks=[events.append])

    with pytest.raises(type(error)) as alone:
        client.enqueue(request())
    with pytest.raises(type(error)) as batched:
        client.enqueue_many([request()])

    assert alone.value is batched.value is error
    assert events == []


def test_a_request_with_a_key_can_be_sent_again_after_lost_replies() -> None:
    driver = Unreliable(*2 * [StoreUnavailable("reply lost")], commits=True)
    client, repeated = Client(driver), request(idempotency_key="k")
    with suppress(StoreUnavailable):
        client.enqueue(repeated)

    again = client.enqueue(repeated)

    assert [job.id for job in driver.inspector.find(JobFilter(), limit=10).jobs] == [again.id]
    assert again.existed


class ZipCodec(JsonCodec):
    """A codec without a ``name``, which writes another format than its base class."""

    def encode(self, value: object, *, context: bytes) -> bytes:
        return zlib.compress(super().encode(value, context=context))

    def decode(self, data: bytes, *, context: bytes) -> Any:
        return super().decode(zlib.decompress(data), context=context)


WRITES: dict[str, Callable[[Client], object]] = {
    "enqueue": lambda client: client.enqueue(request()),
    "enqueue a key": lambda client: client.enqueue(request(idempotency_key="k")),
    "enqueue_many": lambda client: client.enqueue_many([request()]),
    "aenqueue": lambda client: asyncio.run(client.aenqueue(request())),
    "aenqueue_many": lambda client: asyncio.run(client.aenqueue_many([request()])),
    "encode": lambda client: client.encode({}, new_job_id(), job_type="email.send"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_client_with_another_codec_is_refused_and_stores_nothing(
    store: str, write: Callable[[Client], object], tmp_path: Path
) -> None:
    driver = MemoryDriver() if store == "memory" else SqliteDriver(tmp_path / "jobs.db")
    first = Client(driver, codec=ZipCodec()).enqueue(request())
    client = Client(driver)

    for _ in range(2):
        with pytest.raises(CodecMismatch, match="with codec 'ZipCodec', not 'json'"):
            write(client)

    assert [job.id for job in driver.inspector.find(JobFilter(), limit=10).jobs] == [first.id]
    client.close()
    driver.close()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_the_first_client_that_writes_records_its_codec(write: Callable[[Client], object]) -> None:
    driver = MemoryDriver()

    write(Client(driver, codec=ZipCodec()))

    assert driver.inspector.settings() == {"codec": "ZipCodec"}


def test_a_client_that_has_written_nothing_records_nothing() -> None:
    driver = MemoryDriver()
    client = Client(driver)

    with pytest.raises(InvalidRequest):
        client.enqueue(request(payload={1, 2}))

    assert driver.inspector.settings() == {}


def test_concurrent_threads_with_another_codec_are_all_refused(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "jobs.db")
    Client(driver, codec=ZipCodec()).enqueue(request())
    client, start = Client(driver), threading.Barrier(8)

    def enqueue(_: int) -> str:
        start.wait(20)
        with pytest.raises(CodecMismatch) as refused:
            client.enqueue(request())
        return refused.value.recorded

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(enqueue, range(8))] == ["ZipCodec"] * 8
    assert len(driver.inspector.find(JobFilter(), limit=10).jobs) == 1
    driver.close()


def test_the_codec_is_checked_only_once(tmp_path: Path) -> None:
    remembered: list[str] = []

    class Watched(SqliteDriver):
        def remember(self, name: str, value: str) -> str:
            remembered.append(name)
            return super().remember(name, value)

    watched = Watched(tmp_path / "jobs.db")
    client = Client(watched)
    client.enqueue(request())
    before = watched.statements

    for _ in range(5):
        client.enqueue(request())

    assert (remembered, watched.statements - before) == (["codec"], 5)
    watched.close()


def test_a_failed_codec_check_is_repeated_at_the_next_enqueue() -> None:
    class Unavailable(MemoryDriver):
        is_down = True

        def remember(self, name: str, value: str) -> str:
            if self.is_down:
                raise StoreUnavailable("unplugged")
            return super().remember(name, value)

    driver = Unavailable()
    client = Client(driver, codec=ZipCodec())
    with pytest.raises(StoreUnavailable):
        client.enqueue(request())
    driver.is_down = False

    client.enqueue(request())

    assert driver.inspector.settings() == {"codec": "ZipCodec"}
    assert len(driver.inspector.find(JobFilter(), limit=10).jobs) == 1


def test_a_codec_record_undone_by_a_rollback_is_written_again(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "jobs.db")
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        client = Client(driver.join(db), codec=ZipCodec())
        client.enqueue(request())
        db.rollback()
        client.enqueue(request())
        db.commit()

    assert driver.inspector.settings() == {"codec": "ZipCodec"}
    driver.close()
