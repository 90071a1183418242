"""Slots of the connection pool: threads get them in the order in which they asked, and none is lost."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskharbor.drivers.postgres.slots import ConnectionSlots
from tests.support.signals import keyboard_interrupts
from tests.support.waiting import LIMIT_SECONDS, wait_until


def test_a_thread_that_releases_its_slot_and_wants_another_waits_behind_the_others() -> None:
    slots, order = ConnectionSlots(1), list[str]()

    def wait_for_slot() -> None:
        assert slots.acquire(timeout=LIMIT_SECONDS)
        order.append("waited")
        slots.release()

    assert slots.acquire(timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_for_slot)
        wait_until(lambda: slots.waiting == 1)
        slots.release()
        assert slots.acquire(timeout=LIMIT_SECONDS)
        order.append("had one")
        waiting.result(LIMIT_SECONDS)

    assert order == ["waited", "had one"]


def test_a_slot_that_is_not_released_is_waited_for_until_the_timeout() -> None:
    slots = ConnectionSlots(1)

    assert slots.acquire(timeout=0)
    assert not slots.acquire(timeout=0.01)
    slots.release()
    assert slots.acquire(timeout=0)


def test_a_slot_that_is_released_at_the_moment_of_the_timeout_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = ConnectionSlots(1)
    assert slots.acquire(timeout=0)

    class LateEvent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            is_set = super().wait(timeout)
            slots.release()
            return is_set

    monkeypatch.setattr(threading, "Event", LateEvent)

    assert slots.acquire(timeout=0.01)


class InterruptedLock:
    """A lock where Ctrl-C arrives when it is released, once it is armed."""

    is_armed = False

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self.is_armed:
            InterruptedLock.is_armed = False
            raise KeyboardInterrupt


def test_a_thread_that_is_interrupted_while_it_takes_a_free_slot_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Lock", InterruptedLock)
    slots = ConnectionSlots(1)
    monkeypatch.setattr(InterruptedLock, "is_armed", True)

    with pytest.raises(KeyboardInterrupt):
        slots.acquire(timeout=0)

    assert slots.acquire(timeout=0)


def test_a_thread_that_is_interrupted_while_it_waits_takes_no_slot() -> None:
    slots, main = ConnectionSlots(1), threading.get_ident()
    assert slots.acquire(timeout=0)

    def interrupt() -> None:
        wait_until(lambda: slots.waiting == 1)
        signal.pthread_kill(main, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with keyboard_interrupts(), pytest.raises(KeyboardInterrupt):
        slots.acquire(timeout=LIMIT_SECONDS)
    interrupter.join(LIMIT_SECONDS)
    slots.release()

    assert slots.waiting == 0
    assert slots.acquire(timeout=0)
