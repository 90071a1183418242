"""The runtime of a simulated process: threads, waits and an event loop in one thread and virtual time."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from taskharbor.runtime import start_all
from taskharbor.testing.simulation.world import ProcessKilled
from taskharbor.thread_loop import ERROR_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from contextvars import Context
    from datetime import datetime

    from taskharbor.core.ids import Token
    from taskharbor.runtime import AsyncObserver, AsyncWork
    from taskharbor.testing.simulation.world import Process, ScheduledCall
    from taskharbor.thread_loop import LoopPause

START_JITTER_SECONDS: Final = 0.002
"""The longest time that a thread takes to start."""
CLOCK_ERROR: Final = timedelta(minutes=10)
"""How far the clock of a machine is ahead of the store's. What depends on it for more than display is a bug."""


class HandlerThread(threading.Thread):
    """A thread that runs only between `resume` and its next `sleep` or its end, never concurrently with its caller.

    Unlike `World.wait`, sleeping here does not run other events on top of the sleeper's stack.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._resumed, self._suspended = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._is_killed = False

    def resume(self) -> None:
        """Run the thread until it sleeps or ends. Raise what it raised."""
        if self.ident is None:
            self.start()
        self._resumed.release()
        self._suspended.acquire()
        if self._error is not None:
            raise self._error

    def sleep(self) -> None:
        """Return control to the caller of `resume`, and wait to be resumed. The thread itself calls this."""
        self._suspended.release()
        self._resumed.acquire()
        if self._is_killed:
            raise ProcessKilled

    def kill(self) -> None:
        """End the thread if it sleeps."""
        self._is_killed = True
        if self.is_alive():
            self.resume()

    def run(self) -> None:
        self._resumed.acquire()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  resume() raises it
            self._error = error
        finally:
            self._suspended.release()


class SimulatedRuntime:
    """A `taskharbor.runtime.Runtime` for one simulated process.

    *failed* receives uncaught errors of ticks and callbacks. *may_start* returns whether a
    thread for a sync handler can be started.
    """

    can_block = False

    def __init__(
        self,
        process: Process,
        *,
        failed: Callable[[str, BaseException], None],
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        self._process = process
        self._failed = failed
        self._may_start = may_start
        self.events = SimulatedEventLoop(process, failed)
        self.loops: list[SimulatedLoop] = []
        self._threads: list[HandlerThread] = []

    def now(self) -> datetime:
        return self._process.world.store_time() + CLOCK_ERROR

    def monotonic(self) -> float:
        return self._process.monotonic()

    def process_time(self) -> float:
        return 0.0

    def token(self) -> Token:
        return self._process.world.token()

    def lock(self) -> SimulatedLock:
        return SimulatedLock()

    def serve(
        self,
        name: str,
        tick: Callable[[], timedelta | None],
        between: LoopPause | None = None,  # noqa: ARG002  of other runtimes
    ) -> SimulatedLoop:
        self.loops.append(SimulatedLoop(self._process, name, tick, self._failed))
        return self.loops[-1]

    def run_sync(self, work: Callable[[], None], on_idle: Callable[[], None]) -> None:
        if not self._may_start():
            raise RuntimeError("can't start new thread")

        def run_and_idle() -> None:
            work()
            on_idle()

        thread = HandlerThread(run_and_idle)
        self._threads.append(thread)
        self._process.schedule(self._process.world.rng.uniform(0, START_JITTER_SECONDS), thread.resume)

    def sleep(self, seconds: float | None) -> None:
        """Suspend the calling sync handler for *seconds*, or until its process ends."""
        thread = cast("HandlerThread", threading.current_thread())
        if seconds is not None:
            self._process.schedule(seconds, thread.resume)
        thread.sleep()

    def end_threads(self) -> None:
        """End the sleeping handlers after the simulation has ended."""
        for thread in self._threads:
            thread.kill()

    def event_loop_wait(self) -> float:
        return 0.0

    def thread_id(self) -> int:
        return 1

    def stack(self, thread_id: int) -> str:  # noqa: ARG002  the signature is the runtime's
        return "a simulated thread"

    def run_async(self, works: Sequence[AsyncWork], observer: AsyncObserver) -> None:
        self.events.started += [work for work, _ in works]
        self.events.call_soon_threadsafe(start_all, self.events, works, observer)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


class SimulatedLock:
    """A lock that raises on a deadlock: its holder waits while another thread needs it."""

    def __init__(self) -> None:
        self._is_held = False

    def __enter__(self) -> None:
        if self._is_held:
            raise RuntimeError("the holder of this lock is waiting")
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False


class SimulatedLoop:
    """A loop that ticks like `taskharbor.thread_loop.ThreadLoop`."""

    def __init__(
        self,
        process: Process,
        name: str,
        tick: Callable[[], timedelta | None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._process = process
        self.name = name
        self.is_over = False
        self._tick = tick
        self._failed = failed
        self._is_woken = False
        self._next: ScheduledCall | None = process.schedule(
            process.world.rng.uniform(0, START_JITTER_SECONDS), self._run
        )

    def wake(self) -> None:
        self._is_woken = True
        if self._next is not None:
            self._next.cancel()
            self._next = self._process.schedule(0, self._run)

    def join(self, timeout: timedelta) -> bool:
        # A thread of this process that is lower on the shared stack cannot end while the caller waits on top of it.
        is_blocked = self._process.is_overdue
        self._process.world.wait(timeout.total_seconds(), until=lambda: self.is_over or is_blocked())
        return self.is_over

    def _run(self) -> None:
        self._next = None
        self._is_woken = False
        pause = self._pause()
        if pause is None:
            self.is_over = True
        else:
            self._next = self._process.schedule(0 if self._is_woken else pause.total_seconds(), self._run)

    def _pause(self) -> timedelta | None:
        try:
            return self._tick()
        except Exception as error:  # noqa: BLE001  as in ThreadLoop: the next tick may succeed
            self._failed(self.name, error)
            return ERROR_PAUSE


class SimulatedEventLoop:
    """The part of an asyncio event loop that tasks need, in virtual time. Callbacks run in the order of their calls."""

    def __init__(self, process: Process, failed: Callable[[str, BaseException], None]) -> None:
        self._process = process
        self._failed = failed
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: dict[int, ScheduledCall] = {}
        self._is_busy = False
        self._missed = 0
        self.started: list[Coroutine[Any, Any, Any]] = []
        """All coroutines ever started, to be closed when the simulation ends."""

    def as_loop(self) -> asyncio.AbstractEventLoop:
        return cast("asyncio.AbstractEventLoop", self)

    def time(self) -> float:
        return self._process.monotonic()

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self.as_loop(), context)
        self._ready.append(handle)
        self._process.schedule(0, self._run_one)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self.as_loop(), context)
        self._timers[id(timer)] = self._process.schedule(max(0.0, when - self.time()), lambda: self._fire(timer))
        return timer

    def _fire(self, timer: asyncio.TimerHandle) -> None:
        del self._timers[id(timer)]
        self._ready.append(timer)
        self._run_one()

    def _run_one(self) -> None:
        if self._is_busy:  # a handler blocks the loop
            self._missed += 1
            return
        before = asyncio._get_running_loop()  # noqa: SLF001  asyncio provides it for event loops
        asyncio._set_running_loop(self.as_loop())  # noqa: SLF001
        self._is_busy = True
        try:
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001
        finally:
            self._is_busy = False
            asyncio._set_running_loop(before)  # noqa: SLF001
            while self._missed:
                self._missed -= 1
                self._process.schedule(0, self._run_one)

    def block(self, seconds: float) -> None:
        """Block the loop from inside a task, like a blocking function call."""
        task = asyncio.current_task(self.as_loop())
        if task is not None:
            asyncio._leave_task(self.as_loop(), task)  # noqa: SLF001
        before = asyncio._get_running_loop()  # noqa: SLF001
        try:
            self._process.world.wait(seconds)
        finally:
            asyncio._set_running_loop(before)  # noqa: SLF001
            if task is not None:
                asyncio._enter_task(self.as_loop(), task)  # noqa: SLF001

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.as_loop())

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self.as_loop(), name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  a killed process leaves some
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception):
            self._failed("event loop", error)

    def get_task_factory(self) -> None:
        """No handler of a simulation sets one."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if (entry := self._timers.pop(id(handle), None)) is not None:
            entry.cancel()
