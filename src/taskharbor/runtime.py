"""Threads, waits and clocks: whatever runs for ever takes them from here, and a simulation takes their place."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

from taskharbor.core.ids import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from contextlib import AbstractContextManager

    from taskharbor.core.ids import Token

    AsyncWork = tuple[Coroutine[Any, Any, None], Callable[[], None]]
    """A coroutine, and what to call where it is cancelled before its first step."""

T = TypeVar("T")

NO_PAUSE: Final = timedelta(0)
"""What a tick returns to be called again immediately."""
MIN_PAUSE: Final = timedelta(milliseconds=1)
"""The shortest pause that lets other threads run."""
_LOG: Final = logging.getLogger("taskharbor.runtime")
ERROR_PAUSE: Final = timedelta(seconds=1)
MAX_STACK_FRAMES: Final = 30
CANCEL_GRACE_SECONDS: Final = 1.0  # seconds in which work may end by itself, once it was cancelled


_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def seconds_since_boot() -> float:
    """Return seconds on a clock that cannot be set and, if the machine has one, counts while it is suspended.

    A lease runs out meanwhile, and a store on another machine is not ahead afterwards.
    """
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class ServiceLoop(Protocol):
    """Something that ticks."""

    def wake(self) -> None:
        """Let the next tick come now; from any thread."""

    def join(self, timeout: timedelta) -> bool:
        """Wait until the last tick is over; False if it is not after *timeout*."""


class RunningCoroutine(Protocol):
    """A coroutine under way."""

    def cancel(self) -> None:
        """Ask it to stop; from any thread."""


class Runtime(Protocol):
    """What workers and other services run on."""

    @property
    def can_block(self) -> bool:
        """Whether a tick may wait for something other than the store."""

    def now(self) -> datetime:
        """Return the time of day, for people and for `Snooze(until=…)`; never to judge a lease."""

    def monotonic(self) -> float:
        """Return seconds on a clock that nobody sets."""

    def token(self) -> Token:
        """Return a lease token that was never used before."""

    def lock(self) -> AbstractContextManager[Any]:
        """Return a new lock."""

    def serve(self, name: str, tick: Callable[[], timedelta | None]) -> ServiceLoop:
        """Call *tick* again and again, until it returns None."""

    def run_sync(self, work: Callable[[], None]) -> None:
        """Call *work* beside everything else."""

    def thread_id(self) -> int:
        """Return the id of the calling thread."""

    def stack(self, thread_id: int) -> str:
        """Return what that thread is doing, innermost call last, as text for people."""

    def run_async(self, works: Sequence[AsyncWork]) -> Sequence[RunningCoroutine]:
        """Let each of *works* run on the event loop, in a copy of the caller's context.

        Where one is cancelled before its first step, what came with it is called there; whatever
        comes later, it tells itself.
        """

    def close(self) -> None:
        """Give back threads. Work that does not end is left behind."""


class ThreadRuntime:
    """The real one: a thread for each service, a pool for plain handlers, an event loop in a thread for the others."""

    can_block = True

    def __init__(self, *, sync_threads: int) -> None:
        self._threads = HandlerThreads(max_threads=sync_threads)
        self._events: EventLoopThread | None = None
        self._starting = threading.Lock()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return seconds_since_boot()

    def token(self) -> Token:
        return new_token()

    def lock(self) -> AbstractContextManager[Any]:
        return threading.Lock()

    def serve(self, name: str, tick: Callable[[], timedelta | None]) -> ThreadLoop:
        return ThreadLoop(name, tick)

    def run_sync(self, work: Callable[[], None]) -> None:
        self._threads.run(work)

    def thread_id(self) -> int:
        return threading.get_ident()

    def stack(self, thread_id: int) -> str:
        frame = sys._current_frames().get(thread_id)  # noqa: SLF001  documented, for this very purpose
        return "" if frame is None else "".join(traceback.format_stack(frame, limit=MAX_STACK_FRAMES)).rstrip()

    def run_async(self, works: Sequence[AsyncWork]) -> Sequence[RunningCoroutine]:
        with self._starting:
            if self._events is None:
                self._events = EventLoopThread()
        return self._events.run(works)

    def close(self) -> None:
        self._threads.close()
        if self._events is not None:
            self._events.close()


def run_coroutine(runtime: Runtime, work: Coroutine[Any, Any, T], *, timeout: timedelta) -> T:
    """Let *work* run on the event loop, wait for its end, and return what it returns or raise what it raises.

    Raises `TimeoutError` when *timeout* has passed, and cancels the work then, which has a moment more.
    """
    ended: SimpleQueue[Callable[[], T]] = SimpleQueue()

    async def run() -> None:
        try:
            value = await work
        except BaseException as error:  # noqa: BLE001  whatever it is, it is for the one who waits
            ended.put(partial(_raise, error))
        else:
            ended.put(lambda: value)

    [running] = runtime.run_async([(run(), lambda: ended.put(partial(_raise, asyncio.CancelledError())))])
    try:
        told = ended.get(timeout=timeout.total_seconds())
    except Empty:
        running.cancel()
        with suppress(Empty):
            ended.get(timeout=CANCEL_GRACE_SECONDS)  # for what it does on being cancelled
        raise TimeoutError(f"it did not end within {timeout}") from None  # noqa: TRY003  the class is Python's
    return told()


def _raise(error: BaseException) -> NoReturn:
    raise error


class HandlerThreads:
    """Threads for plain handlers, made when they are needed: one for each piece of work that has not ended.

    The standard library's pool waits for its threads when the process ends: one handler
    that does not stop would then keep a worker from ever exiting.

    One thread is called at a time, and calls the next when it takes up work. So a few run through
    work that waits for nothing, and where one waits the next takes over; to wake a thread for
    each piece costs more than such work.
    """

    def __init__(self, *, max_threads: int) -> None:
        self._most = max_threads
        self._lock = threading.Lock()
        self._work: deque[Callable[[], None]] = deque()
        self._calls: SimpleQueue[bool] = SimpleQueue()  # False: to end
        self._count = self._idle = self._unfinished = 0
        self._is_calling = False

    def run(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._unfinished >= self._count and self._count < self._most:
                # First of all: where there is none left, nobody shall take up the work later.
                threading.Thread(target=self._run, name=f"taskharbor-handler-{self._count + 1}", daemon=True).start()
                self._count += 1
                self._idle += 1
            self._unfinished += 1
            self._work.append(work)
            self._call()

    def close(self) -> None:
        for _ in range(self._count):
            self._calls.put(False)  # noqa: FBT003  a message, not an argument

    def _call(self) -> None:
        if self._work and self._idle and not self._is_calling:
            self._is_calling = True
            self._idle -= 1
            self._calls.put(True)  # noqa: FBT003  as above

    def _run(self) -> None:
        while self._calls.get():
            with self._lock:
                self._is_calling = False
                work = self._take()
            while work is not None:
                try:
                    work()
                except BaseException:  # noqa: BLE001  a thread that ended would be missing to all jobs after this one
                    _LOG.exception("a handler's thread met an error of ours")
                with self._lock:
                    self._unfinished -= 1
                    work = self._take()

    def _take(self) -> Callable[[], None] | None:
        if not self._work:
            self._idle += 1
            return None
        work = self._work.popleft()
        self._call()
        return work


class ThreadLoop:
    """A thread that ticks. An error in a tick is told and survived: what runs for ever must not end by one."""

    def __init__(self, name: str, tick: Callable[[], timedelta | None]) -> None:
        self._name = name
        self._tick = tick
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"taskharbor-{name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def join(self, timeout: timedelta) -> bool:
        self._thread.join(timeout.total_seconds())
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (pause := self._next_pause()) is not None:
            if pause:
                self._woken.wait(pause.total_seconds())
            self._woken.clear()

    def _next_pause(self) -> timedelta | None:
        try:
            return self._tick()
        except BaseException:  # noqa: BLE001  whatever it was, a hook's SystemExit too: the next tick may fare better
            _LOG.exception("%s failed; it goes on in %s", self._name, ERROR_PAUSE)
            return ERROR_PAUSE


class EventLoopThread:
    """An asyncio loop in a thread. Coroutines that are handed over together cost it one wake-up."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="taskharbor-async", daemon=True)
        self._thread.start()

    def run(self, works: Sequence[AsyncWork]) -> list[AsyncRun]:
        runs = [AsyncRun(self._loop, work, never_began) for work, never_began in works]
        self._loop.call_soon_threadsafe(_start_all, runs)
        return runs

    def close(self) -> None:
        self._is_closed = True
        with suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_closed:
            try:
                self._loop.run_forever()
            except BaseException:  # noqa: BLE001  a task that a handler left to itself, and that tried to end the process
                _LOG.exception("a task tried to end the event loop; it goes on")
        self._loop.close()


def _start_all(runs: Iterable[AsyncRun]) -> None:
    for run in runs:
        run.start()


def resolve_futures(results: Iterable[tuple[asyncio.Future[T], T]]) -> None:
    """Give futures their results, from any thread; each event loop is woken once for all of its own."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[T], T]]] = {}
    for future, result in results:
        by_loop.setdefault(future.get_loop(), []).append((future, result))
    for loop, own in by_loop.items():
        with suppress(RuntimeError):  # it is closed: nobody waits there
            loop.call_soon_threadsafe(resolve_in_loop, own)


def resolve_in_loop(results: Iterable[tuple[asyncio.Future[T], T]]) -> None:
    """Do the same in the thread of their loop. Who was cancelled meanwhile needs nothing any more."""
    for future, result in results:
        if not future.done():
            future.set_result(result)


class AsyncRun:
    __slots__ = ("_is_canceled", "_loop", "_never_began", "_task", "_work")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None], never_began: Callable[[], None]
    ) -> None:
        self._loop, self._work, self._never_began = loop, work, never_began
        self._task: asyncio.Task[None] | None = None
        self._is_canceled = False

    def start(self) -> None:
        if self._is_canceled:
            self._work.close()
            self._never_began()
        else:
            # Else asyncio makes up a numbered name for each: a seventh of what a task costs.
            self._task = self._loop.create_task(self._work, name="taskharbor-async")

    def cancel(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: it has nothing left to stop
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._is_canceled = True
        if self._task is None:
            return
        if getcoroutinestate(self._work) == CORO_CREATED:
            self._task.add_done_callback(lambda _: self._never_began())
        self._task.cancel()
