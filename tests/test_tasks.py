"""Tasks: functions whose calls can be stored as jobs, and handles to those jobs."""

from __future__ import annotations

import asyncio
from dataclasses import FrozenInstanceError, dataclass, replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path  # noqa: TC003  annotations are resolved
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import Field

from taskharbor import (
    Context,
    Fixed,
    Handle,
    Harbor,
    JobFailed,
    JobRequest,
    JsonCodec,
    ResultTimeout,
    RetryPolicy,
    Status,
    TaskHarborError,
)
from taskharbor.core.errors import IdempotencyConflict, InvalidRequest, JobNotFound, UsageError
from taskharbor.core.ids import new_job_id
from taskharbor.core.results import JobFilter
from taskharbor.tasks import Call
from taskharbor.worker import current_attempt
from tests.support.waiting import wait_until
from tests.support.worker_rig import running_worker

if TYPE_CHECKING:
    from taskharbor.core.model import Job

SOON = timedelta(milliseconds=50)


@dataclass
class Order:
    number: int
    lines: list[tuple[str, int]]


@dataclass
class Parcel:
    label: Path


def stored(handle: Handle[Any]) -> Job:
    return handle.job()


def test_calling_a_task_calls_its_function(quick: Harbor) -> None:
    @quick.task
    def double(number: int) -> int:
        """Return twice the number."""
        return 2 * number

    @quick.task(queue="mail")
    async def later(number: int) -> int:
        return 2 * number

    assert double(4) == 8
    assert asyncio.run(later(4)) == 8
    assert (double.__name__, double.__doc__) == ("double", "Return twice the number.")


def test_a_call_without_options_is_an_ordinary_request(quick: Harbor) -> None:
    team = {"team": "a"}

    @quick.task(type="mail.send", queue="mail", timeout=30, priority=2, max_attempts=3, metadata=team)
    def send(user: int) -> None: ...

    @quick.task
    def bare(user: int) -> None: ...

    one, other = send.call(7), send.call(7)

    assert one.request == JobRequest(
        type="mail.send", payload={"user": 7}, queue="mail", timeout=30, priority=2, max_attempts=3, metadata=team
    )
    assert bare.call(7).request == JobRequest(type="bare", payload={"user": 7})
    assert one == other == Call(one.request, send)
    assert one == send.using(priority=2).call(7)
    assert one.request.metadata is not other.request.metadata
    with pytest.raises(AttributeError, match="no setter"):
        one.request = other.request  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        one.request.queue = "bulk"  # type: ignore[misc]


def test_an_enqueued_call_runs_with_its_arguments_and_returns_its_result(harbor: Harbor) -> None:
    @harbor.task
    def total(order: Order, *, factor: int = 2) -> tuple[int, str]:
        return factor * sum(count for _, count in order.lines), "pieces"

    handle = total.enqueue(Order(7, [("nut", 2), ("bolt", 3)]))
    harbor.worker().drain()

    assert handle.result() == (10, "pieces")
    assert handle.status() is Status.SUCCEEDED
    assert stored(handle).data == {"order": {"number": 7, "lines": [["nut", 2], ["bolt", 3]]}}


def test_an_async_task_runs_and_its_result_can_be_awaited(harbor: Harbor) -> None:
    @harbor.task
    async def later(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    async def main() -> int:
        handle = await later.aenqueue(21)
        await asyncio.to_thread(harbor.worker().drain)
        return await handle.aresult()

    assert asyncio.run(main()) == 42


def test_the_worker_passes_the_context(harbor: Harbor) -> None:
    seen = []

    @harbor.task
    def record(ctx: Context, number: int) -> None:
        seen.append((ctx.claim.job.id, number, current_attempt.get()))

    handle = record.enqueue(7)
    harbor.worker().drain()

    [(job_id, number, now_running)] = seen
    assert (job_id, number) == (handle.id, 7)
    assert now_running is not None
    assert (now_running.job_id, now_running.attempt) == (handle.id, 1)


def test_options_of_a_call_override_those_of_its_task(quick: Harbor) -> None:
    team = {"team": "a", "x": "y"}

    @quick.task(type="mail.send", queue="mail", timeout=30, priority=2, max_attempts=3, metadata=team)
    def send() -> None: ...

    plain = stored(send.enqueue())
    when = datetime(2050, 1, 1, tzinfo=UTC)
    other = stored(
        send.using(
            queue="bulk",
            scheduled_for=when,
            timeout=timedelta(minutes=1),
            max_attempts=9,
            priority=-1,
            idempotency_key="k",
            metadata={"team": "b"},
        ).enqueue()
    )

    assert (plain.type, plain.queue, plain.timeout, plain.priority, plain.max_attempts, plain.metadata) == (
        "mail.send", "mail", timedelta(seconds=30), 2, 3, {"team": "a", "x": "y"}
    )  # fmt: skip
    assert (other.queue, other.scheduled_for, other.timeout, other.max_attempts, other.priority) == (
        "bulk", when, timedelta(minutes=1), 9, -1
    )  # fmt: skip
    assert (other.idempotency_key, other.metadata) == ("k", {"team": "b", "x": "y"})


def test_the_retry_policy_of_a_task_applies_to_its_jobs(harbor: Harbor) -> None:
    attempts = []

    @harbor.task(retry=RetryPolicy(backoff=Fixed(0.001)), max_attempts=3)
    def fails() -> None:
        attempts.append(1)
        raise LookupError("no luck")

    @harbor.task(retry=RetryPolicy(give_up_on=(ValueError,)))
    def gives_up() -> None:
        raise ValueError("never")

    failing, hopeless = fails.enqueue(), gives_up.enqueue()
    worker = harbor.worker(poll=SOON)
    worker.start()
    try:
        with pytest.raises(JobFailed, match=r"is DEAD: .*no luck"):
            failing.result(20)
        with pytest.raises(JobFailed, match=r"is DEAD: .*never"):
            hopeless.result(20)
    finally:
        worker.stop()
    assert len(attempts) == 3
    assert stored(hopeless).attempt_count == 1


def test_the_policy_of_a_harbor_applies_to_tasks_without_their_own() -> None:
    harbor = Harbor("memory://", policy=RetryPolicy(give_up_on=(ValueError,)))

    @harbor.task
    def fails() -> None:
        raise ValueError("never")

    @harbor.task(retry=RetryPolicy(backoff=Fixed(timedelta(hours=1))))
    def tries() -> None:
        raise ValueError("later")

    hopeless, hopeful = fails.enqueue(), tries.enqueue()
    harbor.worker().drain()
    with harbor.testing() as harness:
        fails.enqueue()
        [ran] = harness.drain()

    assert (hopeless.status(), hopeful.status(), ran.status) == (Status.DEAD, Status.FAILED, Status.DEAD)


def test_a_renamed_task_runs_jobs_of_its_aliases(harbor: Harbor) -> None:
    @harbor.task(aliases=("old.welcome",))
    def welcome(name: str) -> str:
        return f"hello {name}"

    old = harbor.client.enqueue(JobRequest(type="old.welcome", payload={"name": "Ada"}))
    harbor.worker().drain()

    assert welcome.handle(old.id).result() == "hello Ada"


def test_enqueue_many_returns_a_handle_for_each_call(harbor: Harbor) -> None:
    @harbor.task
    def double(number: int) -> int:
        return 2 * number

    handles = harbor.enqueue_many(double.using(priority=n).call(n) for n in range(5))
    more = asyncio.run(harbor.aenqueue_many([double.call(9)]))
    harbor.worker().drain()

    assert [handle.result() for handle in handles] == [0, 2, 4, 6, 8]
    assert [stored(handle).priority for handle in handles] == [0, 1, 2, 3, 4]
    assert more[0].result() == 18


def test_each_handle_of_enqueue_many_equals_the_one_of_a_single_call(harbor: Harbor) -> None:
    @harbor.task
    def origin(at: int) -> Order:
        return Order(at, [])

    once = origin.using(idempotency_key="k").enqueue(1)
    again, new = harbor.enqueue_many([origin.using(idempotency_key="k").call(1), origin.call(2)])
    harbor.worker().drain()

    assert (again.id, again.existed, new.existed) == (once.id, True, False)
    assert (again.result(), new.result()) == (Order(1, []), Order(2, []))
    assert repr(new) == f"Handle('{new.id}')"


def test_many_calls_of_scalars_are_stored_as_single_ones(harbor: Harbor) -> None:
    @harbor.task
    def bare(number: int, text: str = "", *, rate: float | None = None) -> None: ...

    @harbor.task(queue="mail", timeout=30, priority=2, max_attempts=3, metadata={"team": "a"})
    def send(user: str) -> None: ...

    def without_identity(handle: Handle[Any]) -> Job:
        now = datetime(2030, 1, 1, tzinfo=UTC)
        return replace(stored(handle), id=singles[0].id, created_at=now, scheduled_for=now)

    singles = [bare.enqueue(1, "ü"), send.enqueue("Ada"), bare.enqueue(2, rate=0.5), bare.enqueue(rate=None, number=3)]
    calls = [bare.call(1, "ü"), send.call("Ada"), bare.call(2, rate=0.5), bare.call(rate=None, number=3)]
    # The first three were packed before, so that alone they are written without a request now.
    batches = [harbor.enqueue_many(calls[:3]), asyncio.run(harbor.aenqueue_many(calls[:3])), harbor.enqueue_many(calls)]

    for handles in batches:
        for single, other in zip(singles, handles, strict=False):
            assert without_identity(other) == without_identity(single)
    assert len({handle.id for handles in [singles, *batches] for handle in handles}) == 14


def test_an_invalid_call_among_scalar_ones_is_named_and_nothing_is_stored() -> None:
    harbor = Harbor("memory://", codec=JsonCodec(limit=40))

    @harbor.task
    def greet(name: str) -> None: ...

    greet.enqueue("Ada")
    for wrong in ("\ud800", "x" * 50):
        with pytest.raises(InvalidRequest, match=r"jobs\[1\]\.payload") as refused:
            harbor.enqueue_many([greet.call("a"), greet.call(wrong)])
        assert len(refused.value.problems) == 1
    assert len(harbor.driver.inspector.find(JobFilter(), limit=10).jobs) == 1


def test_calls_of_scalars_are_encoded_by_the_codec_of_the_harbor() -> None:
    class Reversed(JsonCodec):
        name = "reversed"  # type: ignore[misc]

        def encode(self, value: object, *, context: bytes) -> bytes:
            return super().encode(value, context=context)[::-1]

        def decode(self, data: bytes, *, context: bytes) -> Any:
            return super().decode(data[::-1], context=context)

    harbor = Harbor("memory://", codec=Reversed())

    @harbor.task
    def greet(name: str) -> str:
        return name

    for _ in range(2):
        [handle] = harbor.enqueue_many([greet.call("Ada")])
        assert stored(handle).payload == b'}"adA":"eman"{'


def test_equal_calls_with_a_key_are_one_job_and_others_are_refused(harbor: Harbor) -> None:
    @harbor.task
    def greet(name: str) -> None: ...

    once = greet.using(idempotency_key="k").enqueue("Ada")
    again = greet.using(idempotency_key="k").enqueue("Ada")

    assert (once.existed, again.existed, again.id) == (False, True, once.id)
    with pytest.raises(IdempotencyConflict):
        greet.using(idempotency_key="k").enqueue("Grace")


def test_a_call_with_wrong_arguments_is_refused_and_nothing_is_stored(harbor: Harbor) -> None:
    @harbor.task
    def greet(name: str) -> None: ...

    untyped: Any = greet
    for args in ((7,), (), ("a", "b")):
        with pytest.raises(InvalidRequest):
            untyped.enqueue(*args)
    with pytest.raises(InvalidRequest, match=r"must be str, not int"):
        harbor.enqueue_many([greet.call("a"), greet.call(7)])  # type: ignore[arg-type]

    assert harbor.driver.inspector.queues() == []


def test_a_stored_call_that_mismatches_the_task_becomes_a_dead_letter(harbor: Harbor) -> None:
    @harbor.task
    def greet(name: str) -> None: ...

    job_id = harbor.client.enqueue(JobRequest(type="greet", payload={"nmae": "Ada"})).id
    harbor.worker().drain()

    with pytest.raises(JobFailed, match=r"does not match task 'greet': nmae: no such parameter"):
        greet.handle(job_id).result()
    assert harbor.handle(job_id).job().attempt_count == 1


@pytest.mark.parametrize(
    "payload",
    [
        {"token": "canary"},
        {"token": "t", "age": "canary"},
        {"token": "t", "age": {"a": ["canary"]}},
        ["canary"],
        "canary",
    ],
    ids=["raises", "other type", "nested", "list", "text"],
)
def test_no_argument_is_in_the_log_or_in_a_stored_error(
    quick: Harbor, payload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @quick.task(max_attempts=1)
    def send(token: str, age: int = 1) -> str:
        if age:
            raise LookupError
        return token

    job_id = quick.client.enqueue(JobRequest(type="send", payload=payload, max_attempts=1)).id
    with caplog.at_level("DEBUG"):
        quick.worker().drain()

    job, inspector = quick.handle(job_id).job(), quick.driver.inspector
    assert job.status is Status.DEAD
    shown = [job.last_error, job.dead_reason, inspector.attempts([job_id]), inspector.outbox([job_id]), caplog.text]
    assert "canary" not in repr(shown)


def test_a_result_that_does_not_match_its_annotation_becomes_a_dead_letter(harbor: Harbor) -> None:
    @harbor.task
    def lies() -> int:
        return "7"  # type: ignore[return-value]

    handle = lies.enqueue()
    harbor.worker().drain()

    with pytest.raises(JobFailed, match=r"its result cannot be stored: result .* must be int, not str"):
        handle.result()


def test_progress_is_visible_while_the_task_runs(harbor: Harbor) -> None:
    seen = []

    @harbor.task
    def render(ctx: Context) -> None:
        ctx.progress(3, 10, "page 3")
        watched = harbor.watcher.watch(ctx.claim.job.id, timedelta(seconds=20))

        async def read_progress() -> None:
            async for job in watched:
                if job.progress is not None:
                    seen.append((job.progress.done, job.progress.total, job.progress.note))
                    return

        asyncio.run(read_progress())

    handle = render.enqueue()
    harbor.worker().drain()

    assert handle.result() is None
    assert seen == [(3, 10, "page 3")]


def test_a_waiting_job_is_canceled_immediately(harbor: Harbor) -> None:
    @harbor.task
    def greet(name: str) -> None: ...

    handle = greet.using(delay=3600).enqueue("Ada")

    assert handle.cancel()
    assert not handle.cancel()
    assert handle.status() is Status.CANCELED
    with pytest.raises(JobFailed, match=r"is CANCELED"):
        handle.result(1)


def test_a_timeout_says_what_the_job_waits_for(harbor: Harbor) -> None:
    @harbor.task
    def greet(name: str) -> None: ...

    later, unserved = greet.using(delay=3600).enqueue("Ada"), greet.enqueue("Ada")

    for handle, reason in (later, "it is due at .*"), (unserved, "no live worker serves queue 'default': start one"):
        message = rf"job {handle.id} did not finish within 0.01 s; it is PENDING: {reason}"
        with pytest.raises(ResultTimeout, match=message) as caught:
            handle.result(0.01)
        with pytest.raises(ResultTimeout, match=message):
            asyncio.run(handle.aresult(0.01))
        assert caught.value.status is Status.PENDING


def test_a_timeout_names_the_type_that_no_worker_handles(quick: Harbor) -> None:
    @quick.task
    def greet(name: str) -> None: ...

    with running_worker(quick.driver, {"other": lambda _: None}):
        wait_until(lambda: bool(quick.driver.inspector.workers()))
        with pytest.raises(ResultTimeout, match="no live worker of queue 'default' handles type 'greet'"):
            greet.enqueue("Ada").result(0.01)


def test_a_handle_to_a_missing_job_raises_job_not_found(harbor: Harbor) -> None:
    handle = harbor.handle(new_job_id())

    for method in (handle.status, handle.progress, handle.cancel, handle.result):
        with pytest.raises(JobNotFound):
            method()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queu": "mail"}, "option is 'queu': must be one of type, aliases, queue"),
        ({"type": "two words"}, "type is 'two words': must match"),
        ({"queue": "two words"}, "queue is 'two words': must match"),
        ({"timeout": "5 minutes"}, "timeout is '5 minutes': must be a timedelta or a number of seconds"),
        ({"max_attempts": 0}, "max_attempts is 0: must be from 1"),
        ({"aliases": "old"}, r"aliases is 'old': must be a tuple: \('old',\)"),
        ({"retry": 3}, "retry is 3: must be a RetryPolicy; to set only the number of attempts, use max_attempts"),
    ],
)
def test_an_invalid_task_option_is_refused_at_the_definition(
    options: dict[str, Any], message: str, quick: Harbor
) -> None:
    with pytest.raises(TaskHarborError, match=message):

        @quick.task(**options)
        def send() -> None: ...


def test_an_invalid_call_option_is_refused(quick: Harbor) -> None:
    @quick.task
    def send() -> None: ...

    with pytest.raises(UsageError, match=r"option is 'dealy': must be one of queue, delay"):
        send.using(dealy=5)  # type: ignore[call-arg]
    for wrong in ("5 minutes", float("nan"), 1e300, True):
        with pytest.raises(UsageError, match=r"delay is .*: must be a timedelta or a number of seconds"):
            send.using(delay=wrong).enqueue()  # type: ignore[arg-type]


def test_duplicate_task_types_are_refused_except_for_a_redefined_task(quick: Harbor) -> None:
    def define(answer: int) -> Any:
        @quick.task
        def greet() -> int:
            return answer

        return greet

    define(1)
    assert define(2)() == 2

    with pytest.raises(UsageError, match=r"two tasks have the type 'greet': .*greet at tests/test_tasks.py:\d+ and .*"):

        @quick.task(aliases=("greet",))
        def other() -> None: ...


def test_a_method_or_an_unannotated_parameter_is_refused(quick: Harbor) -> None:
    with pytest.raises(UsageError, match=r"parameter 'name' is not annotated"):

        @quick.task
        def greet(name) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001  the missing annotation is tested

    with pytest.raises(UsageError, match=r"parameter 'self' is not annotated: a task cannot be a method"):

        class Greeter:
            @quick.task
            def greet(self) -> None: ...


def test_decorating_a_task_again_is_refused(quick: Harbor) -> None:
    with pytest.raises(UsageError, match=r"task is 'greet': it is already a task; .*aliases="):

        @quick.task(type="other")
        @quick.task
        def greet() -> None: ...


def test_parameters_may_have_names_of_internal_parameters(quick: Harbor) -> None:
    @quick.task
    def odd(self: int, args: int, /, kwargs: int, *, options: int, **rest: int) -> list[int]:
        return [self, args, kwargs, options, rest["self"]]

    handle = odd.using(priority=1).enqueue(1, 2, kwargs=3, options=4, self=5)
    quick.worker().drain()

    assert handle.result() == [1, 2, 3, 4, 5]


def test_a_task_shows_its_type(quick: Harbor) -> None:
    @quick.task(type="mail.send")
    def send() -> None: ...

    assert repr(send) == "Task('mail.send')"


def test_a_task_where_a_call_is_expected_is_refused_with_what_to_write(quick: Harbor) -> None:
    @quick.task
    def send(to: str) -> None: ...

    with pytest.raises(UsageError, match=r"calls is .*send.*: it is not a call; write task\.call\(…\)"):
        quick.enqueue_many([send])  # type: ignore[arg-type]


def test_calls_of_another_harbors_tasks_are_refused(quick: Harbor) -> None:
    other = Harbor("memory://")

    @other.task
    def send() -> None: ...

    with pytest.raises(UsageError, match=r"task is 'send': it belongs to another harbor"):
        quick.enqueue_many([send.call()])
    with pytest.raises(UsageError, match=r"task is 'send': it belongs to another harbor"):
        quick.schedule("0 2 * * *")(send)


@pytest.mark.parametrize("values", [(float("nan"),), ("1",), (1, 1.5), (None,), (1, 2, 3)], ids=repr)
def test_invalid_progress_is_refused_immediately(values: tuple[Any, ...], quick: Harbor) -> None:
    @quick.task(max_attempts=1)
    def render(ctx: Context) -> None:
        ctx.progress(*values)

    handle = render.enqueue()
    quick.worker().drain()

    with pytest.raises(
        JobFailed,
        match=r"progress is .*: done and total must be integers of at most 64 bits, and note must be text",
    ):
        handle.result()


def test_ten_thousand_progress_reports_take_few_statements(monkeypatch: pytest.MonkeyPatch, quick: Harbor) -> None:
    statements = []
    save_progress = quick.driver.save_progress

    def counted(reports: Any) -> None:
        statements.append(reports)
        save_progress(reports)

    monkeypatch.setattr(quick.driver, "save_progress", counted)

    @quick.task
    def render(ctx: Context) -> None:
        for page in range(10_000):
            ctx.progress(page, 10_000, "pages")

    render.enqueue()
    quick.worker().drain()

    assert len(statements) <= 10


def test_a_task_with_a_parameter_that_cannot_be_stored_is_refused_at_the_definition(quick: Harbor) -> None:
    with pytest.raises(UsageError, match=r"parameter 'path' is annotated Path: Path cannot be stored"):

        @quick.task
        def resize(path: Path) -> None: ...

    with pytest.raises(UsageError, match=r"result is annotated time: time cannot be stored"):

        @quick.task
        async def closing_time() -> time: ...  # type: ignore[empty-body]


def test_a_class_that_is_defined_below_its_task_is_checked_when_a_worker_starts(
    quick: Harbor, monkeypatch: pytest.MonkeyPatch
) -> None:
    @quick.task
    def ship(parcel: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821  it is defined below

    with pytest.raises(UsageError, match="name 'Later' is not defined"):
        quick.worker()

    monkeypatch.setitem(globals(), "Later", Parcel)

    with pytest.raises(UsageError, match=r"parameter 'parcel\.label' is annotated Path"):
        quick.worker()


def test_a_constraint_of_pydantic_is_enforced_at_the_enqueue(quick: Harbor) -> None:
    @quick.task
    def book(seats: Annotated[int, Field(gt=3)]) -> int:
        return seats

    handle = book.enqueue(4)
    quick.worker().drain()

    assert handle.result() == 4
    with pytest.raises(InvalidRequest, match=r"seats is not what the task takes: Input should be greater than 3"):
        book.enqueue(3)
