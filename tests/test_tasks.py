"""Tasks: functions that stay functions, and whose calls are jobs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import (
    Context,
    Fixed,
    Handle,
    Harbor,
    JobFailed,
    JobRequest,
    ResultTimeout,
    RetryPolicy,
    Status,
    TaskHarborError,
)
from taskharbor.core.errors import IdempotencyConflict, InvalidRequest, JobNotFound, UsageError
from taskharbor.core.ids import new_job_id
from taskharbor.worker.context import current_attempt

if TYPE_CHECKING:
    from taskharbor.core.model import Job

SOON = timedelta(milliseconds=50)


@dataclass
class Order:
    number: int
    lines: list[tuple[str, int]]


def stored(handle: Handle[Any]) -> Job:
    return handle.job()


def test_a_task_is_still_the_plain_function(quick: Harbor) -> None:
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


def test_a_call_that_was_enqueued_runs_with_its_arguments_and_its_result_comes_back(harbor: Harbor) -> None:
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


def test_the_context_is_filled_in_and_is_no_part_of_the_call(harbor: Harbor) -> None:
    seen = []

    @harbor.task
    def told(ctx: Context, number: int) -> None:
        seen.append((ctx.claim.job.id, number, current_attempt.get()))

    handle = told.enqueue(7)
    harbor.worker().drain()

    [(job_id, number, now_running)] = seen
    assert (job_id, number) == (handle.id, 7)
    assert now_running is not None
    assert (now_running.job_id, now_running.attempt) == (handle.id, 1)


def test_options_of_a_call_win_over_those_of_its_task(quick: Harbor) -> None:
    retry = RetryPolicy(backoff=Fixed(SOON), max_attempts=3)

    @quick.task(type="mail.send", queue="mail", timeout=30, priority=2, retry=retry, metadata={"team": "a", "x": "y"})
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


def test_the_retry_policy_of_a_task_decides_when_it_is_tried_again(harbor: Harbor) -> None:
    attempts = []

    @harbor.task(retry=RetryPolicy(backoff=Fixed(timedelta(milliseconds=1)), max_attempts=3))
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


def test_the_retry_policy_of_a_harbor_is_for_tasks_without_their_own() -> None:
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


def test_a_task_that_was_renamed_still_runs_jobs_of_its_old_name(harbor: Harbor) -> None:
    @harbor.task(aliases=("old.welcome",))
    def welcome(name: str) -> str:
        return f"hello {name}"

    old = harbor.client.enqueue(JobRequest(type="old.welcome", payload={"name": "Ada"}))
    harbor.worker().drain()

    assert welcome.handle(old.id).result() == "hello Ada"


def test_many_calls_go_out_in_one_statement_each_with_its_own_handle(harbor: Harbor) -> None:
    @harbor.task
    def double(number: int) -> int:
        return 2 * number

    handles = harbor.enqueue_many(double.using(priority=n).call(n) for n in range(5))
    more = asyncio.run(harbor.aenqueue_many([double.call(9)]))
    harbor.worker().drain()

    assert [handle.result() for handle in handles] == [0, 2, 4, 6, 8]
    assert [stored(handle).priority for handle in handles] == [0, 1, 2, 3, 4]
    assert more[0].result() == 18


def test_the_same_key_and_call_is_the_same_job_and_another_call_is_refused(harbor: Harbor) -> None:
    @harbor.task
    def greet(name: str) -> None: ...

    once = greet.using(idempotency_key="k").enqueue("Ada")
    again = greet.using(idempotency_key="k").enqueue("Ada")

    assert (once.existed, again.existed, again.id) == (False, True, once.id)
    with pytest.raises(IdempotencyConflict):
        greet.using(idempotency_key="k").enqueue("Grace")


def test_a_call_that_does_not_fit_is_refused_and_nothing_is_stored(harbor: Harbor) -> None:
    @harbor.task
    def greet(name: str) -> None: ...

    untyped: Any = greet
    for args in ((7,), (), ("a", "b")):
        with pytest.raises(InvalidRequest):
            untyped.enqueue(*args)
    with pytest.raises(InvalidRequest, match=r"must be str, not int"):
        harbor.enqueue_many([greet.call("a"), greet.call(7)])  # type: ignore[arg-type]

    assert harbor.driver.inspector.queues() == []


def test_a_stored_call_that_does_not_fit_becomes_a_dead_letter_that_says_why(harbor: Harbor) -> None:
    @harbor.task
    def greet(name: str) -> None: ...

    job_id = harbor.client.enqueue(JobRequest(type="greet", payload={"nmae": "Ada"})).id
    harbor.worker().drain()

    with pytest.raises(JobFailed, match=r"does not match task 'greet': nmae: no such parameter"):
        greet.handle(job_id).result()
    assert harbor.handle(job_id).job().attempt_count == 1


def test_a_result_that_does_not_fit_its_annotation_is_a_dead_letter_and_not_run_again(harbor: Harbor) -> None:
    @harbor.task
    def lies() -> int:
        return "7"  # type: ignore[return-value]

    handle = lies.enqueue()
    harbor.worker().drain()

    with pytest.raises(JobFailed, match=r"its result cannot be stored: result .* must be int, not str"):
        handle.result()


def test_progress_can_be_seen_while_the_task_runs(harbor: Harbor) -> None:
    seen = []

    @harbor.task
    def render(ctx: Context) -> None:
        ctx.progress(3, 10, "page 3")
        watched = harbor.watcher.watch(ctx.claim.job.id, timedelta(seconds=20))

        async def look() -> None:
            async for job in watched:
                if job.progress is not None:
                    seen.append((job.progress.done, job.progress.total, job.progress.note))
                    return

        asyncio.run(look())

    handle = render.enqueue()
    harbor.worker().drain()

    assert handle.result() is None
    assert seen == [(3, 10, "page 3")]


def test_a_waiting_job_is_canceled_at_once_and_says_so(harbor: Harbor) -> None:
    @harbor.task
    def greet(name: str) -> None: ...

    handle = greet.using(delay=3600).enqueue("Ada")

    assert handle.cancel()
    assert not handle.cancel()
    assert handle.status() is Status.CANCELED
    with pytest.raises(JobFailed, match=r"is CANCELED"):
        handle.result(1)


def test_who_waits_too_short_is_told_that_the_job_goes_on(harbor: Harbor) -> None:
    @harbor.task
    def greet(name: str) -> None: ...

    handle = greet.using(delay=3600).enqueue("Ada")

    with pytest.raises(ResultTimeout, match=r"still running"):
        handle.result(0.01)
    with pytest.raises(ResultTimeout, match=r"still running"):
        asyncio.run(handle.aresult(0.01))


def test_a_handle_on_a_job_that_is_not_there_says_so(harbor: Harbor) -> None:
    handle = harbor.handle(new_job_id())

    for ask in (handle.status, handle.progress, handle.cancel, handle.result):
        with pytest.raises(JobNotFound):
            ask()


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"queu": "mail"}, "option is 'queu': there are type, aliases, queue"),
        ({"type": "two words"}, "type is 'two words': must match"),
        ({"queue": "two words"}, "queue is 'two words': must match"),
        ({"timeout": "5 minutes"}, "timeout is '5 minutes': give a timedelta, or seconds"),
        ({"max_attempts": 0}, "max_attempts is 0: must be from 1"),
        ({"aliases": "old"}, r"aliases is 'old': give a tuple: \('old',\)"),
        ({"retry": 3}, "retry is 3: give a RetryPolicy; for a number of attempts there is max_attempts"),
    ],
)
def test_an_option_of_a_task_that_is_wrong_is_refused_where_the_task_is_defined(
    options: dict[str, Any], refusal: str, quick: Harbor
) -> None:
    with pytest.raises(TaskHarborError, match=refusal):

        @quick.task(**options)
        def send() -> None: ...


def test_an_option_of_a_call_that_is_unknown_or_wrong_is_refused(quick: Harbor) -> None:
    @quick.task
    def send() -> None: ...

    with pytest.raises(UsageError, match=r"option is 'dealy': there are queue, delay"):
        send.using(dealy=5)  # type: ignore[call-arg]
    for wrong in ("5 minutes", float("nan"), 1e300, True):
        with pytest.raises(UsageError, match=r"delay is .*: give a timedelta, or seconds"):
            send.using(delay=wrong).enqueue()  # type: ignore[arg-type]


def test_two_tasks_of_one_type_are_refused_and_one_that_is_defined_anew_takes_its_own_place(quick: Harbor) -> None:
    def define(answer: int) -> Any:
        @quick.task
        def greet() -> int:
            return answer

        return greet

    define(1)
    assert define(2)() == 2

    with pytest.raises(UsageError, match=r"type is 'greet': .*greet has it; give one of them another with type="):

        @quick.task(aliases=("greet",))
        def other() -> None: ...


def test_a_method_or_an_unannotated_function_is_refused_by_name(quick: Harbor) -> None:
    with pytest.raises(UsageError, match=r"parameter 'name' is not annotated"):

        @quick.task
        def greet(name) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001  that is the point

    with pytest.raises(UsageError, match=r"parameter 'self' is not annotated: a task cannot be a method"):

        class Greeter:
            @quick.task
            def greet(self) -> None: ...


def test_a_task_is_not_made_of_a_task(quick: Harbor) -> None:
    with pytest.raises(UsageError, match=r"task is 'greet': it is already a task; .*aliases="):

        @quick.task(type="other")
        @quick.task
        def greet() -> None: ...


def test_parameters_may_have_any_name(quick: Harbor) -> None:
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


def test_calls_of_another_harbors_tasks_are_refused_rather_than_stored_here(quick: Harbor) -> None:
    other = Harbor("memory://")

    @other.task
    def send() -> None: ...

    with pytest.raises(UsageError, match=r"task is 'send': it belongs to another harbor"):
        quick.enqueue_many([send.call()])
    with pytest.raises(UsageError, match=r"task is 'send': it belongs to another harbor"):
        quick.schedule("0 2 * * *")(send)


@pytest.mark.parametrize("said", [(float("nan"),), ("1",), (1, 1.5), (None,), (1, 2, 3)], ids=repr)
def test_progress_that_is_no_number_is_refused_at_once(said: tuple[Any, ...], quick: Harbor) -> None:
    @quick.task(max_attempts=1)
    def render(ctx: Context) -> None:
        ctx.progress(*said)

    handle = render.enqueue()
    quick.worker().drain()

    with pytest.raises(
        JobFailed,
        match=r"progress is .*: done and total must be integers of at most 64 bits, and note must be text",
    ):
        handle.result()


def test_ten_thousand_words_of_progress_are_stored_in_few_statements(
    monkeypatch: pytest.MonkeyPatch, quick: Harbor
) -> None:
    statements = []
    note = quick.driver.save_progress

    def counted(said: Any) -> None:
        statements.append(said)
        note(said)

    monkeypatch.setattr(quick.driver, "save_progress", counted)

    @quick.task
    def render(ctx: Context) -> None:
        for page in range(10_000):
            ctx.progress(page, 10_000, "pages")

    render.enqueue()
    quick.worker().drain()

    assert len(statements) <= 10
