"""The runtime of services: threads, loops, event loop and clocks. A simulation replaces it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, TypeVar

from taskharbor.core.ids import new_token
from taskharbor.handler_threads import HandlerThreads
from taskharbor.thread_loop import EventPause, ThreadLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from contextlib import AbstractContextManager
    from contextvars import Context

    from taskharbor.core.ids import Token
    from taskharbor.thread_loop import LoopPause

    AsyncWork = tuple[Coroutine[Any, Any, None], Any]
    """A coroutine, and what its observer knows it by."""
    TaskMaker = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

T = TypeVar("T")

NO_PAUSE: Final = timedelta(0)
"""What a tick returns to be called again immediately."""
MIN_PAUSE: Final = timedelta(milliseconds=1)
"""The shortest pause that lets other threads run."""
_LOG: Final = logging.getLogger("taskharbor.runtime")
MAX_STACK_FRAMES: Final = 30
CANCEL_GRACE_SECONDS: Final = 1.0
"""How long a cancelled coroutine may take to end."""
MIN_TO_THREADS: Final = 32
START_BATCH: Final = 32
"""How many coroutines get a task before their first steps are run."""
MAX_START_SECONDS: Final = 0.005
"""How long first steps are run before the other callbacks of the event loop. Without it, 256 steps of 2 ms would make
all handlers that wait, and their timeouts, wait for half a second more.
"""
_TASK_NAME: Final = "taskharbor-async"
_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def seconds_since_boot() -> float:
    """Return monotonic seconds, including time in suspend if the platform supports it.

    Leases expire while the machine is suspended, and the store's clock on another machine continues.
    """
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class ServiceLoop(Protocol):
    """A running loop that calls its tick repeatedly."""

    def wake(self) -> None:
        """End the current pause. May be called from any thread."""

    def join(self, timeout: timedelta) -> bool:
        """Wait up to *timeout* for the last tick to return; return whether it did."""


class AsyncObserver(Protocol):
    """Receives, in the thread of the event loop, the coroutines that did not end in their first step."""

    def suspended(self, key: Any, cancel: Callable[[], None]) -> None:
        """Note that a coroutine waits. *cancel* requests its cancellation, and may be called from any thread."""

    def unstarted(self, key: Any) -> None:
        """Note that a coroutine will not run: no task could be created for it, or it was cancelled before.

        One that was cancelled by its own first step, and ended in it, is reported too.
        """


class Runtime(Protocol):
    """The threads, loops and clocks that workers and other services use."""

    @property
    def can_block(self) -> bool:
        """Whether a tick may block on something other than the store."""

    def now(self) -> datetime:
        """Return the time of this machine, for display. It may be wrong: never compare it with a time of the store."""

    def monotonic(self) -> float:
        """Return seconds on a monotonic clock."""

    def process_time(self) -> float:
        """Return the seconds of CPU time that the process has used."""

    def token(self) -> Token:
        """Return a new lease token."""

    def lock(self) -> AbstractContextManager[Any]:
        """Return a new lock."""

    def serve(self, name: str, tick: Callable[[], timedelta | None], between: LoopPause | None = None) -> ServiceLoop:
        """Start a loop that calls *tick*, pauses for the returned time, and ends when *tick* returns None.

        A runtime with a single thread ignores *between*.
        """

    def run_sync(self, work: Callable[[], None], on_idle: Callable[[], None]) -> None:
        """Call *work* in a handler thread. A thread that has no more work calls *on_idle*, which may add some."""

    def thread_id(self) -> int:
        """Return the id of the calling thread."""

    def stack(self, thread_id: int) -> str:
        """Return the formatted stack of that thread, innermost call last."""

    def run_async(self, works: Sequence[AsyncWork], observer: AsyncObserver) -> None:
        """Run each of *works* on the event loop, in a copy of the caller's context.

        If the caller runs on the event loop, the first steps may have been run when this returns. After the first step
        a coroutine itself handles its cancellation.
        """

    def event_loop_wait(self) -> float:
        """Return for how many seconds the event loop has not answered; 0 if it has, or there is none.

        Each call asks it if no question is open. So call this regularly, from one thread.
        """

    def close(self) -> None:
        """Stop the threads. Work that does not end is abandoned."""


class ThreadRuntime:
    """The default runtime: one thread per loop, a pool for sync handlers, an event loop thread for async ones."""

    can_block = True

    def __init__(self, *, sync_threads: int) -> None:
        self._sync_threads = sync_threads
        self._threads = HandlerThreads(max_threads=sync_threads)
        self._events: EventLoopThread | None = None
        self._starting = threading.Lock()

    monotonic = staticmethod(seconds_since_boot)  # a method would take twice as long

    def now(self) -> datetime:
        return datetime.now(UTC)

    def process_time(self) -> float:
        return time.process_time()

    def token(self) -> Token:
        return new_token()

    def lock(self) -> AbstractContextManager[Any]:
        return threading.Lock()

    def serve(self, name: str, tick: Callable[[], timedelta | None], between: LoopPause | None = None) -> ThreadLoop:
        return ThreadLoop(name, tick, between or EventPause())

    def run_sync(self, work: Callable[[], None], on_idle: Callable[[], None]) -> None:
        self._threads.run(work, on_idle)

    def thread_id(self) -> int:
        return threading.get_ident()

    def stack(self, thread_id: int) -> str:
        frame = sys._current_frames().get(thread_id)  # noqa: SLF001  documented for this purpose
        return "" if frame is None else "".join(traceback.format_stack(frame, limit=MAX_STACK_FRAMES)).rstrip()

    def run_async(self, works: Sequence[AsyncWork], observer: AsyncObserver) -> None:
        with self._starting:
            if self._events is None:
                self._events = EventLoopThread(to_threads=self._sync_threads)
        self._events.run(works, observer)

    def event_loop_wait(self) -> float:
        return 0.0 if self._events is None else self._events.wait()

    def close(self) -> None:
        self._threads.close()
        if self._events is not None:
            self._events.close()


def run_coroutine(runtime: Runtime, work: Coroutine[Any, Any, T], *, timeout: timedelta) -> T:
    """Run *work* on the event loop and return its result or raise its error.

    After *timeout*, cancel the work, wait for `CANCEL_GRACE_SECONDS`, and raise `TimeoutError`.
    """
    awaited = _Awaited[T]()
    runtime.run_async([(awaited.run(work), None)], awaited)
    try:
        result = awaited.ended.get(timeout=timeout.total_seconds())
    except Empty:
        awaited.cancel()
        with suppress(Empty):
            awaited.ended.get(timeout=CANCEL_GRACE_SECONDS)  # let it handle the cancellation
        raise TimeoutError(f"did not finish within {timeout}") from None  # noqa: TRY003  a built-in class
    return result()


class _Awaited(Generic[T]):
    """A coroutine whose result another thread waits for."""

    def __init__(self) -> None:
        self.ended: SimpleQueue[Callable[[], T]] = SimpleQueue()
        self._cancel: Callable[[], None] | None = None
        self._is_canceled = False

    async def run(self, work: Coroutine[Any, Any, T]) -> None:
        if self._is_canceled:  # while the loop was busy
            work.close()
            self.unstarted(None)
            return
        try:
            value = await work
        except BaseException as error:  # noqa: BLE001  raised again in the waiting thread
            self.ended.put(partial(_raise, error))
        else:
            self.ended.put(lambda: value)

    def suspended(self, _key: None, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        if self._is_canceled:
            cancel()

    def unstarted(self, _key: None) -> None:
        self.ended.put(partial(_raise, asyncio.CancelledError()))

    def cancel(self) -> None:
        self._is_canceled = True
        if self._cancel is not None:
            self._cancel()


def _raise(error: BaseException) -> NoReturn:
    raise error


class EventLoopThread:
    """An asyncio event loop in a thread. Coroutines submitted together cost one wake-up.

    `asyncio.to_thread` has at least *to_threads* threads: as many as handlers may call it at once. Python's default of
    four more than there are processors would let the others wait, and calls that hang would soon stop them all.
    """

    def __init__(self, *, to_threads: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(max(MIN_TO_THREADS, to_threads), "asyncio"))
        self._is_closed = False
        self._asked_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="taskharbor-async", daemon=True)
        self._thread.start()

    def run(self, works: Sequence[AsyncWork], observer: AsyncObserver) -> None:
        if threading.get_ident() == self._thread.ident:  # a wake of the loop by itself would take 5 µs
            start_all(self._loop, works, observer)
        else:
            self._loop.call_soon_threadsafe(start_all, self._loop, works, observer)

    def wait(self) -> float:
        """Return for how many seconds the last question is unanswered; if there is none, ask."""
        if (asked_at := self._asked_at) is not None:
            return seconds_since_boot() - asked_at
        self._asked_at = seconds_since_boot()
        with suppress(RuntimeError):  # already closed
            self._loop.call_soon_threadsafe(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._asked_at = None

    def close(self) -> None:
        self._is_closed = True
        with suppress(RuntimeError):  # already closed
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_closed:
            try:
                self._loop.run_forever()
            except BaseException:  # noqa: BLE001  such as SystemExit in a task that a handler started
                _LOG.exception("a task raised an error that stops the event loop; restarting it")
        self._loop.close()


def start_all(loop: asyncio.AbstractEventLoop, works: Sequence[AsyncWork], observer: AsyncObserver) -> None:
    """Create the tasks of *works* in the thread of *loop*, and run their first steps now, not in its next cycle.

    This halves the cost of a handler that does not wait. Python 3.12 has eager tasks for it; 3.11 has not. Tasks are
    created a few at a time: their memory is then still in the cache of the processor when their steps run.
    After `MAX_START_SECONDS` the others are left to the next cycle.
    """
    create_task, started_at = _task_maker(loop), seconds_since_boot()
    for start in range(0, len(works), START_BATCH):
        end = start + START_BATCH
        try:
            _start_few(loop, works[start:end], observer, create_task)
        except BaseException:
            # A step raised an error that ends the loop, such as SystemExit. The others are run when it is restarted.
            loop.call_soon(start_all, loop, works[end:], observer)
            raise
        if end < len(works) and seconds_since_boot() - started_at >= MAX_START_SECONDS:
            loop.call_soon(start_all, loop, works[end:], observer)
            return


def _start_few(
    loop: asyncio.AbstractEventLoop, works: Sequence[AsyncWork], observer: AsyncObserver, create_task: TaskMaker
) -> None:
    steps: list[tuple[Context, Callable[..., object], tuple[object, ...]]] = []

    def capture(callback: Callable[..., object], *args: object, context: Context | None = None) -> None:
        # An empty context is false.
        steps.append((copy_context() if context is None else context, callback, args))

    if loop.get_task_factory() is None:  # else it may run a first step itself, whose callbacks are not ours
        with suppress(AttributeError):  # a loop written in C, such as uvloop's, starts its tasks in the next cycle
            loop.call_soon = capture  # type: ignore[assignment,method-assign]
    try:
        tasks = [_created(work, create_task) for work, _ in works]
    finally:
        with suppress(AttributeError):
            del loop.call_soon
    pending = iter(steps)
    try:
        for context, step, args in pending:
            context.run(step, *args)
    finally:
        for context, step, args in pending:
            loop.call_soon(step, *args, context=context)
        for task, (work, key) in zip(tasks, works, strict=True):
            # A handler may have cancelled all tasks, also those whose first steps were to follow its own.
            if task is None or task.cancelled():
                observer.unstarted(key)
            elif not task.done():
                if getcoroutinestate(work) == CORO_CREATED:  # it will begin in the next cycle
                    task.add_done_callback(partial(_report_unstarted, observer, key))
                observer.suspended(key, _canceller(loop, task))


def _report_unstarted(observer: AsyncObserver, key: object, task: asyncio.Task[None]) -> None:
    if task.cancelled():
        observer.unstarted(key)


def _created(work: Coroutine[Any, Any, None], create_task: TaskMaker) -> asyncio.Task[None] | None:
    try:
        return create_task(work)
    except Exception:  # noqa: BLE001  of a task factory that a handler has set
        _LOG.exception("a handler was not started: the event loop cannot create a task")
        work.close()
        return None


def _task_maker(loop: asyncio.AbstractEventLoop) -> TaskMaker:
    """Return a function that does what ``loop.create_task`` does, without its call if nothing has replaced it.

    A given name is cheaper: asyncio's numbered names take a seventh of the cost of a task.
    """
    method = getattr(loop.create_task, "__func__", None)  # None, or of another module, if an instrumentation wraps it
    is_standard = getattr(method, "__globals__", None) is vars(asyncio.base_events)
    if is_standard and loop.get_task_factory() is None:
        return partial(asyncio.Task, loop=loop, name=_TASK_NAME)
    return partial(loop.create_task, name=_TASK_NAME)


def resolve_futures(results: Iterable[tuple[asyncio.Future[T], T]]) -> None:
    """Set the results of futures from any thread. Each event loop is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[T], T]]] = {}
    for future, result in results:
        by_loop.setdefault(future.get_loop(), []).append((future, result))
    for loop, own in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, so no coroutine waits
            loop.call_soon_threadsafe(resolve_in_loop, own)


def resolve_in_loop(results: Iterable[tuple[asyncio.Future[T], T]]) -> None:
    """Set the results of futures in the thread of their loop, except those that were cancelled."""
    for future, result in results:
        if not future.done():
            future.set_result(result)


def _canceller(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> Callable[[], None]:
    def cancel() -> None:
        with suppress(RuntimeError):  # the loop is closed, so nothing runs
            loop.call_soon_threadsafe(task.cancel)

    return cancel
