"""Locks for idempotency keys: one insert statement at a time for each key."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import Client
from taskharbor.core.errors import StoreUnavailable
from taskharbor.group_commit import key_locks
from taskharbor.group_commit.key_locks import KeyLocks, KeyWaiter, keys_of
from tests.support.fork import in_a_child
from tests.support.held_keys import HELD, WAITERS, CountingDriver, held_key, request
from tests.support.postgres import emptied
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Queue:
    """Statements by name, and the order in which they started."""

    def __init__(self) -> None:
        self.locks = KeyLocks()
        self.started: list[str] = []
        self.waiters: dict[str, KeyWaiter] = {}

    def enter(self, name: str, *keys: str, is_run: bool = True) -> None:
        def start(_: KeyWaiter) -> bool:
            self.started.append(name)
            return is_run

        self.waiters[name] = KeyWaiter(frozenset(("default", key) for key in keys), start)
        self.locks.enter(self.waiters[name])

    def leave(self, name: str) -> None:
        self.locks.leave(self.waiters[name])


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_a_statement_starts_when_none_ahead_of_it_has_its_key(queue: Queue) -> None:
    queue.enter("first", "a")
    queue.enter("second", "a")
    queue.enter("other", "b")
    queue.enter("third", "a")
    assert queue.started == ["first", "other"]

    queue.leave("first")
    queue.enter("fourth", "a")
    assert queue.started == ["first", "other", "second"]
    queue.leave("second")
    assert queue.started == ["first", "other", "second", "third"]


def test_a_statement_with_several_keys_waits_for_each_of_them(queue: Queue) -> None:
    queue.enter("a", "a")
    queue.enter("b", "b")
    queue.enter("both", "a", "b")
    queue.enter("both again", "b", "a")

    queue.leave("a")
    assert queue.started == ["a", "b"]
    queue.leave("b")
    assert queue.started == ["a", "b", "both"]
    queue.leave("both")
    assert queue.started == ["a", "b", "both", "both again"]


def test_a_statement_withdrawn_while_it_waits_keeps_its_place(queue: Queue) -> None:
    for name in ("first", "withdrawn", "last"):
        queue.enter(name, "a")

    queue.leave("withdrawn")
    assert queue.started == ["first"]
    queue.leave("first")
    assert queue.started == ["first", "last"]


def test_a_statement_that_is_not_run_lets_the_next_one_start(queue: Queue) -> None:
    queue.enter("first", "a")
    for number in range(5_000):  # more than the recursion limit of Python
        queue.enter(f"canceled {number}", "a", is_run=False)
    queue.enter("last", "a")

    queue.leave("first")

    assert queue.started[-1] == "last"


def test_a_key_is_free_after_all_its_statements_left(queue: Queue) -> None:
    queue.enter("first", "a")
    queue.enter("second", "a", "b")
    queue.leave("first")
    queue.leave("second")

    assert queue.locks._last == {}  # noqa: SLF001  the entries must not accumulate


def test_a_statement_that_never_left_is_forgotten(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enter("lost", "a")
    queue.enter("second", "a")
    monkeypatch.setattr(key_locks, "FORGET_SECONDS", 0.0)

    queue.enter("third", "a")

    assert queue.started == ["lost", "third"]


def test_equal_keys_in_two_queues_are_different_keys(client: Client) -> None:
    jobs = client.prepare_many([request(idempotency_key="a"), request(idempotency_key="a", queue="mail"), request()])

    assert keys_of(jobs) == {("default", "a"), ("mail", "a")}


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def driver(url: str) -> Iterator[CountingDriver]:
    with closing(CountingDriver(url)) as driver:
        yield driver


@pytest.fixture
def client(driver: CountingDriver) -> Iterator[Client]:
    with closing(Client(driver)) as client:
        yield client


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(WAITERS) as pool:
        yield pool


def single(client: Client, _number: int) -> object:
    return client.enqueue(request(idempotency_key=HELD))


def batch(client: Client, number: int) -> object:
    return client.enqueue_many([request(idempotency_key=f"own {number}"), request(idempotency_key=HELD)])


def waiting(client: Client) -> int:
    """Return the number of statements that wait for the held key, including the one in the store."""
    waiter = client._key_locks._last.get(("default", HELD))  # noqa: SLF001  only a test counts them
    ahead = 0
    while waiter is not None:
        ahead += 1
        waiter = next(iter(waiter.ahead), None)
    return ahead


@pytest.mark.parametrize("waiter", [single, batch])
def test_waiters_for_a_held_key_occupy_one_connection(
    client: Client, driver: CountingDriver, url: str, pool: ThreadPoolExecutor, waiter: Callable[..., object]
) -> None:
    with held_key(driver, url):
        waiters = [pool.submit(waiter, client, number) for number in range(WAITERS)]
        wait_until(lambda: waiting(client) == WAITERS)
        assert driver.is_waiting.wait(LIMIT_SECONDS)

        others = [client.enqueue(request(idempotency_key="another")), client.enqueue(request())]

        assert [each.existed for each in others] == [False, False]
        assert not any(each.done() for each in waiters)
    for each in waiters:
        each.result(LIMIT_SECONDS)
    assert driver.most_at_once == 1


def wait_in_store(client: Client, driver: CountingDriver, pool: ThreadPoolExecutor) -> Future[object]:
    """Let a thread wait for the held key inside the store."""
    first = pool.submit(single, client, 0)
    assert driver.is_waiting.wait(LIMIT_SECONDS)
    return first


def test_a_thread_that_waits_too_long_for_its_key_is_not_sent(
    client: Client, driver: CountingDriver, url: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_locks, "KEY_TIMEOUT_SECONDS", 0.01)
    with held_key(driver, url):
        first = wait_in_store(client, driver, pool)

        with pytest.raises(StoreUnavailable, match="'held' in queue 'default'"):
            single(client, 1)

        assert (driver.inserts, waiting(client)) == (1, 2)
    first.result(LIMIT_SECONDS)
    assert waiting(client) == 0


def test_an_error_of_the_store_frees_the_key(client: Client, driver: CountingDriver) -> None:
    driver.close()
    with suppress(StoreUnavailable):
        single(client, 0)

    assert waiting(client) == 0


def test_a_signal_handler_that_enqueues_does_not_wait_for_the_thread_it_interrupted(client: Client) -> None:
    answers: list[Any] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: answers.append(single(client, 1)))
    try:
        with client._key_locks.hold(frozenset({("default", HELD)})):  # noqa: SLF001  as an enqueue does
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert [each.existed for each in answers] == [False]


def test_a_forked_process_does_not_wait_for_threads_of_its_parent(
    client: Client, driver: CountingDriver, pool: ThreadPoolExecutor
) -> None:
    entered = threading.Event()
    may_leave = threading.Event()

    def hold() -> None:
        with client._key_locks.hold(frozenset({("default", HELD)})):  # noqa: SLF001  as an enqueue does
            entered.set()
            may_leave.wait(LIMIT_SECONDS)

    holding = pool.submit(hold)
    assert entered.wait(LIMIT_SECONDS)

    code = in_a_child(lambda: client.enqueue(request(idempotency_key=HELD)))

    may_leave.set()
    holding.result(LIMIT_SECONDS)
    assert code == 0
    assert driver.inserts == 0
    assert client.enqueue(request(idempotency_key=HELD)).existed
