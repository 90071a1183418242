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

from taskharbor import Client, Enqueued, JobRequest, JsonCodec, MemoryDriver, RetryPolicy, Status
from taskharbor.core.errors import (
    CodecMismatch,
    EnqueueRefused,
    IdempotencyConflict,
    InvalidRequest,
    PayloadNotDecodable,
    StoreUnavailable,
)
from taskharbor.core.hooks import JobEnqueued
from taskharbor.core.ids import JobId, new_job_id
from taskharbor.core.model import Job, NewJob
from taskharbor.core.results import JobFilter
from taskharbor.crypto import AesGcmCodec
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from taskharbor.core.codec import Codec
    from taskharbor.core.hooks import HookEvent

HOUR: Final = timedelta(hours=1)
NOW: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Autumn(tzinfo):
    """A place where the clock is set back by an hour just now."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return HOUR if moment is None or moment.fold else 2 * HOUR

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> None:
        return None


class ClientRig:
    """A client and the store behind it, both on one clock."""

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


@pytest.fixture(name="harbour")
def plain_harbour() -> ClientRig:
    return ClientRig()


def test_a_bare_request_becomes_a_job_that_is_due_at_once_with_every_default(harbour: ClientRig) -> None:
    answer = harbour.enqueue()

    assert not answer.existed
    assert harbour.all() == [
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
            max_attempts=RetryPolicy().max_attempts,
        )
    ]


def test_everything_that_was_asked_for_is_stored(harbour: ClientRig) -> None:
    answer = harbour.enqueue(
        payload={"name": "Ada"},
        queue="mail",
        delay=HOUR,
        timeout=timedelta(seconds=30),
        max_attempts=7,
        priority=-5,
        idempotency_key="welcome-7",
        metadata={"tenant": "acme"},
    )

    job = harbour.stored(answer.id)
    assert job.data == {"name": "Ada"}
    assert (job.queue, job.priority, job.max_attempts) == ("mail", -5, 7)
    assert (job.scheduled_for, job.timeout) == (NOW + HOUR, timedelta(seconds=30))
    assert (job.idempotency_key, job.metadata) == ("welcome-7", {"tenant": "acme"})


def test_a_job_gets_a_uuid_that_sorts_by_time(harbour: ClientRig) -> None:
    ids = [harbour.enqueue().id for _ in range(10)]

    assert {job_id.version for job_id in ids} == {7}
    assert ids == sorted(ids)


def test_the_attempts_come_from_the_policy_where_the_request_says_nothing() -> None:
    harbour = ClientRig(policy=RetryPolicy(max_attempts=4))

    bare, own = harbour.enqueue(), harbour.enqueue(max_attempts=1)

    assert [harbour.stored(answer.id).max_attempts for answer in (bare, own)] == [4, 1]


def test_a_job_is_created_when_the_clients_clock_says_and_due_when_the_stores_does() -> None:
    harbour = ClientRig(clock=ManualClock(NOW - HOUR))

    job = harbour.stored(harbour.enqueue(delay=HOUR).id)

    assert job.created_at == NOW - HOUR
    assert job.scheduled_for == NOW + HOUR


def test_without_a_clock_the_machines_own_is_taken() -> None:
    driver = MemoryDriver()
    before = datetime.now(UTC)

    answer = Client(driver).enqueue(request())

    assert before <= driver.inspector.get([answer.id])[answer.id].created_at <= datetime.now(UTC)


def test_a_moment_in_another_time_zone_is_stored_as_the_same_moment_in_utc(harbour: ClientRig) -> None:
    there = datetime(2030, 6, 1, 9, tzinfo=timezone(-4 * HOUR))

    job = harbour.stored(harbour.enqueue(scheduled_for=there).id)

    assert job.scheduled_for == datetime(2030, 6, 1, 13, tzinfo=UTC)
    assert job.scheduled_for.tzinfo is UTC


def test_the_second_of_two_equal_hours_in_autumn_is_kept_apart_from_the_first(harbour: ClientRig) -> None:
    first = datetime(2030, 10, 27, 2, 30, tzinfo=Autumn())

    jobs = [harbour.stored(harbour.enqueue(scheduled_for=first.replace(fold=fold)).id) for fold in (0, 1)]

    assert jobs[1].scheduled_for - jobs[0].scheduled_for == HOUR


def test_a_moment_in_the_past_is_due_at_once(harbour: ClientRig) -> None:
    job = harbour.stored(harbour.enqueue(scheduled_for=NOW - HOUR).id)

    assert job.scheduled_for == NOW - HOUR


def test_what_the_caller_changes_afterwards_does_not_change_the_job(harbour: ClientRig) -> None:
    payload, metadata = {"name": "Ada"}, {"tenant": "acme"}
    answer = harbour.enqueue(payload=payload, metadata=metadata)

    payload["name"], metadata["tenant"] = "Eve", "evil"

    job = harbour.stored(answer.id)
    assert (job.data, job.metadata) == ({"name": "Ada"}, {"tenant": "acme"})


def test_a_request_may_be_sent_again_under_its_key(harbour: ClientRig) -> None:
    asked = request(payload=[1], idempotency_key="welcome-7")

    first, second = harbour.client.enqueue(asked), harbour.client.enqueue(asked)

    assert (first.existed, second) == (False, Enqueued(first.id, existed=True))
    assert len(harbour.all()) == 1


def test_without_a_key_the_same_request_makes_another_job(harbour: ClientRig) -> None:
    first, second = harbour.enqueue(), harbour.enqueue()

    assert first.id != second.id
    assert not second.existed


def test_the_same_body_is_the_same_in_whatever_order_its_keys_stand(harbour: ClientRig) -> None:
    harbour.enqueue(payload={"a": 1, "b": [{"c": 2, "d": 3}]}, idempotency_key="k")

    again = harbour.enqueue(payload={"b": [{"d": 3, "c": 2}], "a": 1}, idempotency_key="k")

    assert again.existed


def test_when_and_how_often_may_differ_between_a_request_and_its_repeat(harbour: ClientRig) -> None:
    harbour.enqueue(idempotency_key="k")

    again = harbour.enqueue(
        idempotency_key="k", delay=HOUR, priority=1, max_attempts=1, timeout=HOUR, metadata={"try": "2"}
    )

    assert again.existed
    assert harbour.all()[0].scheduled_for == NOW


@pytest.mark.parametrize("other", [{"payload": {"name": "Eve"}}, {"payload": None}, {"type": "part"}])
def test_a_key_is_refused_to_another_payload_and_to_another_type(harbour: ClientRig, other: dict[str, Any]) -> None:
    held = {"payload": {"name": "Ada"}, "idempotency_key": "welcome-7"}
    first = harbour.enqueue(**held)

    with pytest.raises(IdempotencyConflict) as caught:
        harbour.enqueue(**held | other)

    assert (caught.value.key, caught.value.holder) == ("welcome-7", first.id)
    assert [job.id for job in harbour.all()] == [first.id]


def test_a_key_belongs_to_its_queue(harbour: ClientRig) -> None:
    first = harbour.enqueue(queue="mail", idempotency_key="k", payload=1)

    second = harbour.enqueue(queue="reports", idempotency_key="k", payload=2)

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


@pytest.mark.parametrize(("fields", "words"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_with_its_field_its_value_and_the_limit_and_nothing_is_stored(
    harbour: ClientRig, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        harbour.enqueue(**fields)

    assert str(caught.value).startswith(words)
    assert harbour.all() == []


def test_a_refused_payload_does_not_show_what_it_holds(harbour: ClientRig) -> None:
    with pytest.raises(InvalidRequest) as caught:
        harbour.enqueue(payload={"password": "hunter2", "bad": float("nan")})

    assert "hunter2" not in str(caught.value)


def test_many_jobs_are_stored_in_one_statement_and_answered_in_order(harbour: ClientRig) -> None:
    before = harbour.driver.statements

    answers = harbour.client.enqueue_many(request(payload=number) for number in range(50))

    assert harbour.driver.statements - before == 1
    assert [harbour.stored(answer.id).data for answer in answers] == [*range(50)]


def test_of_no_jobs_none_is_stored(harbour: ClientRig) -> None:
    assert harbour.client.enqueue_many([]) == []
    assert harbour.all() == []


def test_one_request_that_breaks_a_rule_stops_all_of_them_and_is_named_by_its_place(harbour: ClientRig) -> None:
    batch = [request(), request(), request(queue="e mail", max_attempts=0), request()]

    with pytest.raises(InvalidRequest) as caught:
        harbour.client.enqueue_many(batch)

    assert [problem.field for problem in caught.value.problems] == ["jobs[2].queue", "jobs[2].max_attempts"]
    assert harbour.all() == []


def test_one_payload_that_cannot_be_stored_stops_all_of_them_and_is_named_by_its_place(harbour: ClientRig) -> None:
    batch = [request(), request(payload={"to": [object()]})]

    with pytest.raises(InvalidRequest) as caught:
        harbour.client.enqueue_many(batch)

    assert [problem.field for problem in caught.value.problems] == ["jobs[1].payload.to[0]"]
    assert harbour.all() == []


def test_keys_that_belong_to_other_jobs_are_refused_one_by_one_and_the_others_are_stored(harbour: ClientRig) -> None:
    held = harbour.enqueue(payload="first", idempotency_key="held")
    batch = [
        request(payload=0),
        request(payload=1, idempotency_key="held"),
        request(payload="first", idempotency_key="held"),
        request(payload=3, idempotency_key="free"),
        request(payload=4, idempotency_key="free"),
    ]

    with pytest.raises(EnqueueRefused) as caught:
        harbour.client.enqueue_many(batch)

    stored = [job for job in harbour.all() if job.id != held.id]
    assert [job.data for job in stored] == [0, 3]
    assert [answer for answer in caught.value.answers if isinstance(answer, Enqueued)] == [
        Enqueued(stored[0].id, existed=False),
        Enqueued(held.id, existed=True),
        Enqueued(stored[1].id, existed=False),
    ]
    assert {place: holder(error) for place, error in caught.value.refused.items()} == {1: held.id, 4: stored[1].id}


def holder(error: Exception) -> JobId | None:
    return error.holder if isinstance(error, IdempotencyConflict) else None


def test_a_hook_is_told_of_each_job_once_it_is_stored() -> None:
    told: list[tuple[HookEvent, bool]] = []
    harbour: ClientRig = ClientRig(hooks=[lambda fact: told.append((fact, bool(harbour.all())))])

    answer = harbour.enqueue(queue="mail")

    fact = JobEnqueued(job_id=answer.id, type="greet", queue="mail", existed=False)
    assert told == [(fact, True)]


def test_a_hook_is_told_that_a_job_existed_and_nothing_of_a_refused_one() -> None:
    told: list[HookEvent] = []
    harbour = ClientRig()
    held = harbour.enqueue(payload=1, idempotency_key="held")
    watched = Client(harbour.driver, clock=harbour.clock, hooks=[told.append])

    with pytest.raises(EnqueueRefused):
        watched.enqueue_many([request(payload=n, idempotency_key="held") for n in (1, 2)])

    assert told == [JobEnqueued(job_id=held.id, type="greet", queue="default", existed=True)]


def test_a_hook_that_breaks_is_logged_and_neither_the_job_nor_the_next_hook_is_harmed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[HookEvent] = []

    def broken(_fact: HookEvent) -> NoReturn:
        raise RuntimeError("the metrics are down")

    harbour = ClientRig(hooks=[broken, told.append])

    with caplog.at_level(logging.ERROR):
        answer = harbour.enqueue()

    assert [job.id for job in harbour.all()] == [answer.id]
    assert len(told) == 1
    [record] = caplog.records
    assert record.name == "taskharbor.client"
    assert "the metrics are down" in str(record.exc_info)


class ReversedCodec:
    """JSON written backwards, for its own job only."""

    def __init__(self) -> None:
        self._json = JsonCodec()

    def encode(self, value: object, *, context: bytes) -> bytes:
        return context + self._json.encode(value, context=context)[::-1]

    def decode(self, data: bytes, *, context: bytes) -> Any:
        return self._json.decode(data.removeprefix(context)[::-1], context=context)

    def digest(self, value: object) -> bytes:
        return self._json.digest([value])


def test_a_codec_of_ones_own_writes_and_reads_the_payload() -> None:
    codec = ReversedCodec()
    harbour = ClientRig(codec=codec)

    job = harbour.stored(harbour.enqueue(payload={"name": "Ada"}).id)

    assert job.payload.endswith(b'}"adA":"eman"{')
    assert replace(job, codec=codec).data == {"name": "Ada"}


class SealedCodec(JsonCodec):
    """Reads a payload only in the job that it was written for."""

    def encode(self, value: object, *, context: bytes) -> bytes:
        return context + super().encode(value, context=context)

    def decode(self, data: bytes, *, context: bytes) -> Any:
        assert data.startswith(context)
        return super().decode(data.removeprefix(context), context=context)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_codec_made_of_ours_is_told_which_job_a_payload_belongs_to(key: str | None) -> None:
    codec = SealedCodec()
    harbour = ClientRig(codec=codec)

    job = harbour.stored(harbour.enqueue(payload={"name": "Ada"}, idempotency_key=key).id)

    assert job.id.bytes in job.payload
    assert replace(job, codec=codec).data == {"name": "Ada"}


def test_ids_of_ones_own_are_used() -> None:
    own = JobId(UUID(int=7))
    harbour = ClientRig(ids=lambda: own)

    assert harbour.enqueue().id == own


def test_an_encrypted_payload_can_be_read_with_the_key_and_not_without() -> None:
    codec = AesGcmCodec({"2030": bytes(range(32))})
    harbour = ClientRig(codec=codec)

    job = harbour.stored(harbour.enqueue(payload={"card": "4111"}).id)

    assert b"4111" not in job.payload
    assert replace(job, codec=codec).data == {"card": "4111"}


def test_another_payload_for_a_job_is_bound_to_it_and_keeps_the_rules_of_an_enqueue() -> None:
    codec = AesGcmCodec({"2030": bytes(range(32))})
    harbour = ClientRig(codec=codec)
    job, other = (harbour.stored(harbour.enqueue().id) for _ in range(2))

    payload = harbour.client.encode({"card": "4111"}, job.id, job_type=job.type)

    assert replace(job, payload=payload, codec=codec).data == {"card": "4111"}
    with pytest.raises(PayloadNotDecodable):
        _ = replace(other, payload=payload, codec=codec).data
    with pytest.raises(InvalidRequest, match=r"^payload\.price is not storable: not a finite number$"):
        harbour.client.encode({"price": float("nan")}, job.id, job_type=job.type)


@pytest.mark.parametrize("codec", [JsonCodec(), ReversedCodec(), AesGcmCodec({"2030": bytes(32)})])
def test_a_repeat_is_told_from_another_body_whatever_the_codec(codec: Codec) -> None:
    harbour = ClientRig(codec=codec)
    first = harbour.enqueue(payload={"card": "4111"}, idempotency_key="k")

    again = harbour.enqueue(payload={"card": "4111"}, idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        harbour.enqueue(payload={"card": "4222"}, idempotency_key="k")

    assert again == Enqueued(first.id, existed=True)


class Queue(StrEnum):
    MAIL = "mail"


class Urgency(IntEnum):
    HIGH = -5


def test_a_member_of_an_enum_is_stored_as_its_plain_value() -> None:
    harbour = ClientRig()

    enqueued = harbour.enqueue(
        type=Queue.MAIL,
        queue=Queue.MAIL,
        priority=Urgency.HIGH,
        idempotency_key=Queue.MAIL,
        metadata={Queue.MAIL: Queue.MAIL},
    )

    job = harbour.stored(enqueued.id)
    [(key, value)] = job.metadata.items()
    values = [job.type, job.queue, job.idempotency_key, key, value]
    assert (values, job.priority) == (["mail"] * 5, -5)
    assert {type(each) for each in values} == {str}
    assert type(job.priority) is int


class Unreliable(MemoryDriver):
    """A store that loses the first inserts, or only the replies to them."""

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


def test_a_store_that_is_known_to_be_away_is_asked_once() -> None:
    gone = StoreUnavailable("gone", retry_in=timedelta(seconds=1))
    driver = Unreliable(gone, commits=False)

    with pytest.raises(StoreUnavailable) as failed:
        Client(driver).enqueue(request())

    assert failed.value is gone
    assert not driver.inspector.find(JobFilter(), limit=10).jobs


@pytest.mark.parametrize(("error", "tries"), [(StoreUnavailable("no route"), 2), (OSError("broken pipe"), 1)])
def test_what_the_store_raises_passes_through_untouched_and_no_hook_is_told(error: Exception, tries: int) -> None:
    told: list[HookEvent] = []
    client = Client(Unreliable(*2 * tries * [error], commits=True), hooks=[told.append])

    with pytest.raises(type(error)) as alone:
        client.enqueue(request())
    with pytest.raises(type(error)) as batched:
        client.enqueue_many([request()])

    assert alone.value is batched.value is error
    assert told == []


def test_a_request_whose_reply_was_lost_can_be_sent_again_under_its_key() -> None:
    driver = Unreliable(*2 * [StoreUnavailable("reply lost")], commits=True)
    client, asked = Client(driver), request(idempotency_key="k")
    with suppress(StoreUnavailable):
        client.enqueue(asked)

    again = client.enqueue(asked)

    assert [job.id for job in driver.inspector.find(JobFilter(), limit=10).jobs] == [again.id]
    assert again.existed


class ZipCodec(JsonCodec):
    """A codec without a name of its own: it writes something else than the one that it inherits from."""

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
        with pytest.raises(CodecMismatch, match="with the codec 'ZipCodec', not with 'json'"):
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


def test_threads_that_enqueue_together_are_all_refused(tmp_path: Path) -> None:
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


def test_the_codec_is_checked_once_and_then_costs_no_statement(tmp_path: Path) -> None:
    asked: list[str] = []

    class Watched(SqliteDriver):
        def remember(self, name: str, value: str) -> str:
            asked.append(name)
            return super().remember(name, value)

    watched = Watched(tmp_path / "jobs.db")
    client = Client(watched)
    client.enqueue(request())
    before = watched.statements

    for _ in range(5):
        client.enqueue(request())

    assert (asked, watched.statements - before) == (["codec"], 5)
    watched.close()


def test_a_store_that_is_away_at_the_first_check_is_asked_again() -> None:
    class Away(MemoryDriver):
        is_away = True

        def remember(self, name: str, value: str) -> str:
            if self.is_away:
                raise StoreUnavailable("unplugged")
            return super().remember(name, value)

    driver = Away()
    client = Client(driver, codec=ZipCodec())
    with pytest.raises(StoreUnavailable):
        client.enqueue(request())
    driver.is_away = False

    client.enqueue(request())

    assert driver.inspector.settings() == {"codec": "ZipCodec"}
    assert len(driver.inspector.find(JobFilter(), limit=10).jobs) == 1


def test_a_record_that_a_rollback_has_undone_is_made_again(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "jobs.db")
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        client = Client(driver.join(db), codec=ZipCodec())
        client.enqueue(request())
        db.rollback()
        client.enqueue(request())
        db.commit()

    assert driver.inspector.settings() == {"codec": "ZipCodec"}
    driver.close()
