"""Tests of `Harness`, with which users test their own tasks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import Context, Fixed, Harbor, RetryPolicy, Snooze, Status, testing
from taskharbor.core.codec import JsonCodec
from taskharbor.core.errors import UsageError
from taskharbor.testing.harness import DrainLimitExceeded, EventLoopRunning, Harness, Step

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def shop() -> Harbor:
    """Return a harbor whose own store is unreachable, since no test may use it."""
    return Harbor("postgresql://user@127.0.0.1:1/unreachable")


def test_assert_enqueued_and_refute_enqueued_match_exact_calls(shop: Harbor) -> None:
    @shop.task
    def welcome(user_id: int, *, lang: str = "en") -> None: ...

    with shop.testing() as harness:
        welcome.enqueue(7, lang="fr")

        assert harness.assert_enqueued(welcome, 7, lang="fr").queue == "default"
        harness.refute_enqueued(welcome, 7)
        with pytest.raises(AssertionError, match=r"no such call of welcome was enqueued; enqueued: welcome\(.*'fr'"):
            harness.assert_enqueued(welcome, 8)
        with pytest.raises(AssertionError, match="this call of welcome was enqueued, as job"):
            harness.refute_enqueued(welcome, 7, lang="fr")
        assert [job.data for job in harness.enqueued(welcome)] == [{"user_id": 7, "lang": "fr"}]


def test_a_task_without_arguments_means_any_call_of_it(shop: Harbor) -> None:
    @shop.task
    def welcome(customer: int, lang: str = "en") -> None: ...

    with shop.testing() as harness:
        harness.refute_enqueued(welcome)
        with pytest.raises(AssertionError, match="no such call of welcome was enqueued"):
            harness.assert_enqueued(welcome)

        handle = welcome.enqueue(7)

        assert harness.assert_enqueued(welcome).id == handle.id
        with pytest.raises(AssertionError, match="this call of welcome was enqueued"):
            harness.refute_enqueued(welcome)


def test_drain_runs_due_jobs_in_this_thread_and_returns_their_attempts(shop: Harbor) -> None:
    @shop.task
    def double(number: int) -> int:
        return 2 * number

    @shop.task
    async def later(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    with shop.testing() as harness:
        handles = [double.enqueue(1), later.using(queue="mail").enqueue(2)]
        ran = harness.drain()

        assert [each.status for each in ran] == [Status.SUCCEEDED, Status.SUCCEEDED]
        assert [handle.result() for handle in handles] == [2, 4]
        assert harness.drain() == []


def test_an_async_test_awaits_the_drain_and_tasks_run_on_its_loop(shop: Harbor) -> None:
    loops = []

    @shop.lifespan
    async def resources() -> AsyncIterator[str]:
        loops.append(asyncio.get_running_loop())
        yield "ready"

    @shop.task
    async def later(ctx: Context) -> str:
        loops.append(asyncio.get_running_loop())
        return str(ctx.state)

    @shop.task
    def sync() -> int:
        return asyncio.run(asyncio.sleep(0, 7))  # as in a worker, whose threads run no event loop

    async def test() -> None:
        with shop.testing() as harness:
            handle, other = await later.aenqueue(), sync.enqueue()
            with pytest.raises(EventLoopRunning, match="await adrain"):
                harness.drain()
            await harness.adrain()
            assert await handle.aresult() == "ready"
            assert other.result() == 7
            assert loops == [asyncio.get_running_loop()] * 2

    asyncio.run(test())


def test_handlers_and_results_use_the_codec_of_the_harbor() -> None:
    class Hidden(JsonCodec):
        """Stores nothing that another codec could read."""

        def encode(self, value: object, *, context: bytes) -> bytes:
            return super().encode(value, context=context)[::-1]

        def decode(self, data: bytes, *, context: bytes) -> Any:
            return super().decode(data[::-1], context=context)

    harbor = Harbor("memory://", codec=Hidden())

    @harbor.task
    def double(number: int) -> int:
        return 2 * number

    with harbor.testing() as harness:
        handle = double.enqueue(21)
        harness.drain()

        assert handle.result() == 42


def test_time_passes_only_in_advance(shop: Harbor) -> None:
    runs = []

    @shop.task(retry=RetryPolicy(backoff=Fixed(300)), max_attempts=3)
    def fails() -> None:
        runs.append(1)
        raise LookupError("no luck")

    @shop.task
    def snoozes(ctx: Context) -> None:
        if ctx.claim.job.created_at == harness.clock.now():
            raise Snooze(timedelta(hours=1))

    with shop.testing() as harness:
        failing, sleeping = fails.enqueue(), snoozes.enqueue()
        assert [(each.status, each.error) for each in harness.drain()] == [
            (Status.FAILED, "LookupError: no luck"),
            (Status.PENDING, None),
        ]
        assert harness.drain() == []

        harness.advance(minutes=5)
        harness.drain()
        assert len(runs) == 2

        harness.advance(timedelta(hours=1))
        harness.drain()
        assert (failing.status(), sleeping.status()) == (Status.DEAD, Status.SUCCEEDED)


@pytest.mark.parametrize(("step", "runs_before"), [("claim", 0), ("run", 1)])
def test_a_job_runs_again_after_a_simulated_worker_crash(step: Step, runs_before: int, shop: Harbor) -> None:
    attempts = []

    @shop.task
    def charge(ctx: Context) -> None:
        attempts.append(ctx.claim.job.attempt_count)

    with shop.testing() as harness:
        handle = charge.enqueue()
        with harness.crash_after(step):
            assert harness.drain() == []
        assert len(attempts) == runs_before
        assert harness.drain() == []
        assert handle.status() is Status.PROCESSING

        harness.advance(seconds=30)
        harness.drain()

        assert handle.status() is Status.SUCCEEDED
        assert attempts[-1] == 2


def test_a_worker_that_dies_after_it_settled_has_lost_nothing(shop: Harbor) -> None:
    @shop.task
    def charge() -> None: ...

    with shop.testing() as harness:
        first, second = charge.enqueue(), charge.enqueue()
        with harness.crash_after("settle"):
            harness.drain()

        assert (first.status(), second.status()) == (Status.SUCCEEDED, Status.PENDING)


def test_a_poison_job_that_kills_every_worker_becomes_a_dead_letter(shop: Harbor) -> None:
    @shop.task(max_attempts=3)
    def poison() -> None: ...

    with shop.testing() as harness:
        handle = poison.enqueue()
        for _ in range(3):
            with harness.crash_after("claim"):
                harness.drain()
            harness.advance(seconds=30)
        harness.drain()

        assert handle.status() is Status.DEAD


def test_schedules_fire_as_the_clock_moves(shop: Harbor) -> None:
    @shop.schedule("0 2 * * *")
    @shop.task
    def nightly() -> None: ...

    with shop.testing() as harness:
        assert harness.drain() == []
        for _ in range(3):
            harness.advance(days=1)
            assert len(harness.drain()) == 1


def test_a_task_that_enqueues_itself_endlessly_fails_the_drain(shop: Harbor, monkeypatch: pytest.MonkeyPatch) -> None:
    @shop.task
    def again() -> None:
        again.enqueue()

    monkeypatch.setattr("taskharbor.testing.harness.MAX_ATTEMPTS_PER_DRAIN", 20)
    with shop.testing() as harness:
        again.enqueue()
        with pytest.raises(DrainLimitExceeded, match=r"after 20 attempts .* does a task enqueue itself"):
            harness.drain()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_lifespan_runs_to_its_end_even_if_drain_fails(
    *, is_async: bool, shop: Harbor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def sync_lifespan() -> Iterator[None]:
        seen.append("opened")
        yield
        seen.append("closed")

    async def async_lifespan() -> AsyncIterator[None]:
        seen.append("opened")
        yield
        seen.append("closed")

    shop.lifespan(async_lifespan if is_async else sync_lifespan)

    @shop.task
    def again() -> None:
        again.enqueue()

    monkeypatch.setattr("taskharbor.testing.harness.MAX_ATTEMPTS_PER_DRAIN", 20)
    with shop.testing() as harness:
        harness.drain()
        again.enqueue()
        with pytest.raises(DrainLimitExceeded):
            harness.drain()

    assert seen == ["opened", "closed"] * 2


def test_a_lifespan_that_does_not_yield_is_refused(shop: Harbor) -> None:
    @shop.lifespan
    def nothing() -> Iterator[None]:
        yield from ()

    with shop.testing() as harness, pytest.raises(UsageError, match="lifespan is nothing: it must yield once"):
        harness.drain()


def test_a_harbor_closed_under_test_does_not_open_its_own_store(shop: Harbor) -> None:
    @shop.task
    def greet() -> None: ...

    with shop.testing() as harness:
        with shop:  # as an application that starts and stops inside a test
            greet.enqueue()

        assert len(harness.drain()) == 1
        assert greet.enqueue().status() is Status.PENDING


def test_a_nested_test_has_its_own_store(shop: Harbor) -> None:
    @shop.task
    def greet() -> None: ...

    with shop.testing() as outer:
        greet.enqueue()
        with suppress(LookupError), shop.testing() as inner:
            assert inner.enqueued() == []
            raise LookupError

        assert len(outer.drain()) == 1


def test_after_the_test_the_harbor_uses_its_own_store(quick: Harbor) -> None:
    @quick.task
    def greet() -> None: ...

    kept = greet.enqueue()
    with quick.testing() as harness:
        greet.enqueue()
        assert len(harness.enqueued()) == 1

    assert kept.status() is Status.PENDING


def test_a_crash_after_an_unknown_step_is_refused() -> None:
    with Harbor("memory://").testing() as harness, pytest.raises(UsageError, match="must be one of claim, run, settle"):
        harness.crash_after("clam").__enter__()  # type: ignore[arg-type]


def test_the_harness_can_be_imported_from_the_package() -> None:
    assert testing.Harness is Harness
    with pytest.raises(AttributeError, match="no attribute 'Harnes'"):
        testing.Harnes  # type: ignore[attr-defined]  # noqa: B018
