"""Calls during an outage: the first one waits, the others fail fast, and a probe detects the recovery."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor import Client, JobRequest
from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.postgres import PostgresDriver, outage
from taskharbor.drivers.postgres.insert import MIN_COPY_JOBS
from taskharbor.drivers.postgres.outage import Outage
from tests.support.postgres import emptied
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import LIMIT_SECONDS, quickest, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_FAST_SECONDS: Final = 0.5  # that a call may take during a known outage
RECOVERY_SECONDS: Final = 15.0  # after the server is available again; about one if the machine is idle
DEADLINE: Final = timedelta(seconds=1)
GONE: Final = StoreUnavailable("gone")
LONG_AGO: Final = 0.0


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(emptied()) as proxy:
        yield proxy


@pytest.fixture
def driver(proxy: Proxy) -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(proxy.url, deadline=DEADLINE)) as driver:
        driver.inspector.now()
        yield driver


def one(client: Client) -> object:
    return client.enqueue(JobRequest(type="greet"))


def keyed(client: Client) -> object:
    return client.enqueue(JobRequest(type="greet", idempotency_key="a"))


def many(client: Client) -> object:
    return client.enqueue_many([JobRequest(type="greet")] * MIN_COPY_JOBS)


def awaited(client: Client) -> object:
    return asyncio.run(client.aenqueue(JobRequest(type="greet")))


def awaited_keyed(client: Client) -> object:
    return asyncio.run(client.aenqueue(JobRequest(type="greet", idempotency_key="a")))


def refuse(proxy: Proxy) -> None:
    proxy.refuse()


def black_hole(proxy: Proxy) -> None:
    proxy.black_hole()


def failure(call: Callable[[], object]) -> tuple[StoreUnavailable, float]:
    """Return the error of *call*, and how many seconds it took."""
    start = time.monotonic()
    with pytest.raises(StoreUnavailable) as failed:
        call()
    return failed.value, time.monotonic() - start


@pytest.mark.parametrize("break_network", [refuse, black_hole])
@pytest.mark.parametrize("enqueue", [one, keyed, many, awaited, awaited_keyed])
def test_after_the_first_failure_every_enqueue_fails_fast_and_says_how_long_to_wait(
    break_network: Callable[[Proxy], None], enqueue: Callable[[Client], object], driver: PostgresDriver, proxy: Proxy
) -> None:
    client = Client(driver)
    break_network(proxy)
    failure(lambda: one(client))

    failed: list[tuple[StoreUnavailable, float]] = []

    def slowest() -> float:
        failed[:] = [failure(lambda: enqueue(client)) for _ in range(5)]
        return max(took for _, took in failed)

    took = quickest(slowest, enough=MAX_FAST_SECONDS)

    proxy.black_hole()  # so that both cases are cleaned up in the same way
    assert took < MAX_FAST_SECONDS
    for error, _ in failed:
        assert error.retry_in is not None
        assert timedelta(0) < error.retry_in <= timedelta(seconds=1)
        assert f"; try again in {error.retry_in.total_seconds():.2g} s" in str(error)
    client.close()


def test_the_first_failure_costs_one_deadline_and_not_two(proxy: Proxy) -> None:
    def first_failure() -> float:
        with closing(PostgresDriver(proxy.url, deadline=DEADLINE)) as driver:
            driver.inspector.now()
            proxy.refuse()
            _, took = failure(lambda: one(Client(driver)))
            proxy.accept()
        assert took > DEADLINE.total_seconds() / 2
        return took

    limit = 1.8 * DEADLINE.total_seconds()
    assert quickest(first_failure, enough=limit) < limit


def test_many_threads_fail_fast_together(driver: PostgresDriver, proxy: Proxy) -> None:
    proxy.black_hole()
    failure(driver.inspector.now)
    failure(driver.inspector.now)
    gate = threading.Barrier(50, timeout=LIMIT_SECONDS)

    def call(_: int) -> float:
        gate.wait()
        return failure(driver.inspector.now)[1]

    with ThreadPoolExecutor(50) as threads:
        took = quickest(lambda: max(threads.map(call, range(50), timeout=LIMIT_SECONDS)), enough=MAX_FAST_SECONDS)

    assert took < MAX_FAST_SECONDS


def test_a_process_that_never_connected_fails_fast_in_a_black_hole_too(proxy: Proxy) -> None:
    proxy.black_hole()
    with closing(PostgresDriver(proxy.url, deadline=DEADLINE)) as driver:
        failure(driver.inspector.now)

        took = quickest(lambda: failure(driver.inspector.now)[1], enough=MAX_FAST_SECONDS)

    assert took < MAX_FAST_SECONDS


def test_every_call_works_again_soon_after_the_server_answers(driver: PostgresDriver, proxy: Proxy) -> None:
    proxy.refuse()
    failure(driver.inspector.now)
    failure(driver.inspector.now)
    proxy.accept()

    def works() -> bool:
        try:
            one(Client(driver))
        except StoreUnavailable:
            return False
        return True

    assert wait_until(works) < RECOVERY_SECONDS


def test_retry_in_survives_pickling() -> None:
    copied = pickle.loads(pickle.dumps(StoreUnavailable("gone", retry_in=DEADLINE)))

    assert (copied.reason, copied.retry_in) == ("gone", DEADLINE)


class Server:
    """A fake server: each probe waits until the test releases it."""

    def __init__(self) -> None:
        self.probes = 0
        self.answers: StoreUnavailable | None = GONE
        self.may_answer = threading.Event()
        self.outage = Outage(self._probe)

    def _probe(self) -> StoreUnavailable | None:
        self.probes += 1
        assert self.may_answer.wait(LIMIT_SECONDS)
        return self.answers

    def waiting(self, pool: ThreadPoolExecutor, count: int) -> list[Any]:
        return [pool.submit(self.outage.wait) for _ in range(count)]

    def note_waits(self, monkeypatch: pytest.MonkeyPatch) -> set[int]:
        """Return the threads that wait for a change, as they come."""
        changed, threads = self.outage._changed, set[int]()  # noqa: SLF001  nothing else shows that a call waits
        wait = changed.wait

        def noted(timeout: float) -> bool:
            threads.add(threading.get_ident())
            return wait(timeout)

        monkeypatch.setattr(changed, "wait", noted)
        return threads


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.may_answer.set()
    server.outage.end()


def test_calls_that_wait_share_one_probe_and_return_when_it_connects(
    server: Server, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "PROBE_SECONDS", 10 * LIMIT_SECONDS)
    server.outage.begin(GONE, give_up_at=time.monotonic() + LIMIT_SECONDS / 2)
    threads = server.note_waits(monkeypatch)
    waiting = server.waiting(pool, 8)
    wait_until(lambda: len(threads) == 8 and server.probes > 0)
    server.answers = None

    server.may_answer.set()

    assert [each.result(LIMIT_SECONDS / 4) for each in waiting] == [None] * 8
    assert (server.probes, server.outage.is_on) == (1, False)


def test_a_waiting_call_continues_with_the_next_probe_when_one_fails(server: Server, pool: ThreadPoolExecutor) -> None:
    server.outage.begin(GONE, give_up_at=time.monotonic() + LIMIT_SECONDS)
    server.may_answer.set()
    [waiting] = server.waiting(pool, 1)
    wait_until(lambda: server.probes >= 3)

    server.answers = None

    assert waiting.result(LIMIT_SECONDS) is None


def test_while_a_probe_is_under_way_other_calls_fail_at_once(
    server: Server, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "PROBE_SECONDS", 10 * LIMIT_SECONDS)
    server.outage.begin(GONE, give_up_at=LONG_AGO)
    first: list[Any] = []

    def has_probe() -> bool:
        if all(each.done() for each in first):
            first[:] = server.waiting(pool, 1)
        return server.probes == 1

    wait_until(has_probe)

    took = quickest(lambda: failure(server.outage.wait)[1], enough=MAX_FAST_SECONDS / 2)

    assert server.probes == 1
    assert took < MAX_FAST_SECONDS / 2
    assert isinstance(first[0].exception(LIMIT_SECONDS), StoreUnavailable)


def test_a_call_that_starts_a_probe_waits_for_it_and_returns_if_it_connects(server: Server) -> None:
    server.outage.begin(GONE, give_up_at=LONG_AGO)
    server.answers = None
    server.may_answer.set()

    def is_connected() -> bool:
        try:
            server.outage.wait()
        except StoreUnavailable:
            return False
        return True

    wait_until(is_connected)
    assert server.probes == 1


def test_a_probe_that_hangs_does_not_keep_the_next_one_from_starting(server: Server, pool: ThreadPoolExecutor) -> None:
    server.outage.begin(GONE, give_up_at=time.monotonic() + LIMIT_SECONDS)

    waiting = server.waiting(pool, 2)

    wait_until(lambda: server.probes == 2)
    server.outage.end()
    assert [each.result(LIMIT_SECONDS) for each in waiting] == [None] * 2


def test_closing_a_driver_ends_the_wait_of_its_calls(proxy: Proxy) -> None:
    with (
        closing(PostgresDriver(proxy.url, deadline=timedelta(seconds=LIMIT_SECONDS))) as driver,
        ThreadPoolExecutor(1) as pool,
    ):
        driver.inspector.now()
        proxy.refuse()
        call = pool.submit(driver.inspector.now)
        wait_until(lambda: driver._connections._outage.is_on)  # noqa: SLF001  the only sign of it

        driver.close()

        assert "this driver was closed" in str(call.exception(RECOVERY_SECONDS))
        proxy.accept()
