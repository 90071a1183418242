"""A child process: enters the lifespan, and runs one attempt after the other with the executor of a worker."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from taskharbor.core.model import claim_from_job
from taskharbor.core.outcome import Outcome
from taskharbor.isolated import linux
from taskharbor.isolated.child_log import ForwardHandler
from taskharbor.isolated.inbox import Inbox
from taskharbor.observability.tracing import in_trace
from taskharbor.runtime import ThreadRuntime
from taskharbor.worker.context import AttemptStopped
from taskharbor.worker.execution import Execution, StopReason
from taskharbor.worker.executor import Executor
from taskharbor.worker.handlers import HandlerRegistry
from taskharbor.worker.isolation.errors import MemoryLimitReached
from taskharbor.worker.isolation.messages import job_of_values, outcome_message
from taskharbor.worker.isolation.wire import FrameTooLarge, Wire
from taskharbor.worker.lifespan import FINISHED, astep, ended, yielded
from taskharbor.worker.prefetch import Prefetch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence

    from taskharbor.core.codec import Codec
    from taskharbor.core.model import Claim, Job, Progress
    from taskharbor.core.retry import RetryPolicy
    from taskharbor.drivers.base import Driver
    from taskharbor.harbor import Harbor
    from taskharbor.runtime import AsyncObserver, AsyncWork
    from taskharbor.worker.context import Context, HandlerServices
    from taskharbor.worker.handlers import AsyncCall, SyncCall

ChildEnds = tuple[int, int, int]
"""The descriptors of a child: its link to the worker, its output, and its queue of jobs."""
_LEASE: Final = timedelta(days=1)  # the executor asks for one; the worker has the real lease
READ_SECONDS: Final = 0.001
"""How often the connection is read at most while a handler asks whether it must stop: a read takes 3 µs."""
LIFESPAN_FAILED: Final = 3
LINK_LOST: Final = 4


class IsolatedApp:
    """A loaded app whose handlers children run: it has the methods of a worker that register them.

    *harbor* has the codec, the store and the lifespan. *log_levels* are those of the worker's loggers.
    """

    def __init__(self, harbor: Harbor, policy: RetryPolicy, log_levels: Mapping[str, int]) -> None:
        self._harbor = harbor
        self._guard = AttemptGuard()
        self._handlers = HandlerRegistry([(self._guard.sync, self._guard.aio)], policy)
        self._log_levels = log_levels

    def register(
        self, type: str, function: Callable[..., Any], *, policy: RetryPolicy | None = None, **_options: Any
    ) -> None:
        """Register a handler, as `Worker.register` does. Its other options are those of the worker."""
        self._handlers.register(type, function, policy)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(sorted(self._handlers.types))

    @property
    def codec(self) -> Codec:
        return self._harbor.codec

    def serve(self, ends: ChildEnds, *, parent: int) -> int:
        """Run attempts until the worker closes the link, and return the exit code of this process."""
        link, output, jobs = ends
        # A group of its own, which is killed with it. Not a session: the kernel schedules each session as one unit
        # (autogroup), and a child that must wait for its turn after the worker makes a call four times as long.
        os.setpgid(0, 0)
        linux.die_with(parent)
        linux.adopt_orphans()
        linux.prefer_in_oom_kill()
        output = _use_standard_descriptors(output)
        faulthandler.enable(all_threads=False)  # a crash writes its stack to the output
        for descriptor in (link, jobs):
            os.set_inheritable(descriptor, False)  # noqa: FBT003  a function of the standard library
        inbox = Inbox(Wire(socket.socket(fileno=link)), socket.socket(fileno=jobs), output)
        server = ChildServer(inbox, self._harbor, self._handlers, self._guard)
        server.log_handler.install(self._log_levels)
        try:
            return server.run()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # a handler may have closed or replaced it
                    stream.flush()


class ChildServer:
    """Runs the attempts that arrive in *inbox*. The recorder of its executor sends their outcomes back."""

    def __init__(self, inbox: Inbox, harbor: Harbor, handlers: HandlerRegistry, guard: AttemptGuard) -> None:
        self._inbox = inbox
        self._wire = inbox.link
        self._pid = os.getpid()
        self._harbor = harbor
        self._runtime = ChildRuntime()
        self._guard = guard
        self._services = ChildServices(harbor, self._save_progress)
        prefetch = Prefetch(self._runtime, concurrency=1, limit=0, lease=_LEASE)
        services = cast("HandlerServices", self._services)
        self._executor = Executor(self._runtime, handlers, self, services, prefetch=prefetch)
        self._outcome: Outcome | None = None
        self._kept_children: set[int] = set()
        self.log_handler: Final = ForwardHandler(self.send)

    def run(self) -> int:
        generator = self._harbor.start_lifespan()
        try:
            self._services.state = yielded(self._step(generator), "lifespan")
        except BaseException:  # noqa: BLE001  user code
            sys.excepthook(*sys.exc_info())  # the worker logs the output
            return LIFESPAN_FAILED
        if linux.has_children():
            self._kept_children = linux.children_of_this_process()
        self.send({"ready": True})
        try:
            while (frame := self._inbox.next_job()) is not None:
                self._run(*frame)
        except (OSError, FrameTooLarge):
            return LINK_LOST
        try:
            ended(self._step(generator), "lifespan")
            self._harbor.close()  # a server would log connections that are cut
        except BaseException:  # noqa: BLE001  user code
            sys.excepthook(*sys.exc_info())
            return LIFESPAN_FAILED
        return 0

    def _step(self, generator: Iterator[Any] | AsyncIterator[Any]) -> Any:
        if isinstance(generator, Iterator):
            return next(generator, FINISHED)
        return self._runtime.complete(astep(generator))

    def send(self, message: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a frame as a whole: a handler that is stopped meanwhile is interrupted after it.

        Threads of the handler may log meanwhile, and the system may put their frames into the middle of a large one.
        The lock is that of the log: a copy of this process that the handler forks gets a new one.
        """
        with self._guard.uninterrupted():
            self.log_handler.acquire()
            try:
                self._wire.send(message, body)
            finally:
                self.log_handler.release()

    def _run(self, message: Mapping[str, Any], payload: bytes) -> None:
        job = job_of_values(message["run"], payload)
        job.use_codec(self._harbor.codec)
        self._outcome = None
        claim, ends_at, claimed_at = claim_from_job(job), message["ends_at"], message["claimed_at"]
        execution = ChildExecution(claim, self, ends_at=ends_at, claimed_at=claimed_at)
        self._guard.begin(execution, message["memory"])
        with in_trace(message["trace"]):
            self._executor.start([execution])
            self._runtime.run_waiting(execution, self._wire.fileno())
        self._guard.end()
        if os.getpid() != self._pid:
            os._exit(0)  # a copy that the handler has forked: the attempt is that of the original
        self._send_outcome(execution, is_measured=message["is_measured"])

    def put(self, execution: Execution, outcome: Outcome | None) -> None:  # noqa: ARG002  there is only one
        """Keep the outcome, as the recorder of a worker would record it."""
        self._outcome = outcome

    def _send_outcome(self, execution: ChildExecution, *, is_measured: bool) -> None:
        outcome = self._outcome
        result = None if outcome is None else outcome.result
        leftovers = self._leftovers()
        frame = {
            "ended": None if outcome is None else outcome_message(outcome),
            "has_result": result is not None,
            "is_stopped": execution.is_asked_to_stop,
            "rss": linux.memory_of(os.getpid()) if is_measured else 0,
            "leftovers": leftovers,
            "is_waiting": self._inbox.close_if(leftovers > 0),
        }
        try:
            self.send(frame, result or b"")
        except FrameTooLarge as error:
            refused = Outcome.fail(f"its result cannot be stored: {error}")
            self.send(frame | {"ended": outcome_message(refused), "has_result": False})

    def _leftovers(self) -> int:
        """Return how many processes the handler has started and left."""
        return len(linux.children_of_this_process() - self._kept_children) if linux.has_children() else 0

    def read_stop(self) -> StopReason | None:
        """Return why the running attempt must stop, if the worker has said so."""
        with suppress(BlockingIOError):
            if not self._wire.pump(blocks=False):
                return StopReason.LOST  # the worker is gone
        frame = self._wire.next()
        return None if frame is None else StopReason[frame[0]["stop"]]

    def note_completed(self) -> None:
        """Report that the handler has completed its job in its own transaction, before that commits."""
        self.send({"completed": True})

    def _save_progress(self, _execution: Execution, progress: Progress) -> None:
        self.send({"progress": [progress.done, progress.total, progress.note]})


class ChildServices:
    """What handlers share in a child. The store is opened when a handler first needs it, so most children have none."""

    redact = None

    def __init__(self, harbor: Harbor, save: Callable[[Execution, Progress], None]) -> None:
        self._harbor = harbor
        self.codec = harbor.codec
        self.save = save
        self.state: Any = None

    @property
    def driver(self) -> Driver:
        return self._harbor.driver


class ChildExecution(Execution):
    """An attempt in its child. The worker has its lease and its timeout; here it only knows whether it must stop.

    ``ends_at`` is when its lease ended as it was sent. It may have waited here for long if the worker does not run.
    """

    __slots__ = ("_is_completed", "_read_at", "_reason", "_server")

    def __init__(self, claim: Claim, server: ChildServer, *, ends_at: float, claimed_at: float | None) -> None:
        self._server = server
        self._reason: StopReason | None = None
        self._read_at = monotonic()
        self._is_completed = False
        super().__init__(claim, ends_at=ends_at, times_out_at=None, claimed_at=claimed_at)

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the attempt must stop. The connection is read, because a handler may have replaced the signal handler."""
        now = monotonic()
        if now > self._read_at + READ_SECONDS:
            self._read_at = now
            self.read_stop()
        return self._reason

    @stop_reason.setter
    def stop_reason(self, reason: StopReason | None) -> None:
        self._reason = reason

    def read_stop(self) -> StopReason | None:
        """Read now whether the worker has asked the attempt to stop, and return why."""
        if self._reason is None and (reason := self._server.read_stop()) is not None:
            self._reason = reason
            if self._stop is not None:  # an async handler
                self._stop()
        return self._reason

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether the handler has ended because it must stop, as far as it knew."""
        return self._reason is not None

    @property
    def is_completed(self) -> bool:
        return self._is_completed

    @is_completed.setter
    def is_completed(self, is_completed: bool) -> None:
        if is_completed:
            self._server.note_completed()
        self._is_completed = is_completed

    def begin(self, now: float) -> None:
        """Record that the handler is called. Its timeout is that of the worker."""
        self.began_at = now


class AttemptGuard:
    """Middleware around each handler: the memory limit, and the signal that makes a sync handler stop."""

    def __init__(self) -> None:
        self._execution: ChildExecution | None = None
        self._limit_bytes = 0
        self._is_interruptible = False

    def begin(self, execution: ChildExecution, limit_bytes: int) -> None:
        self._execution, self._limit_bytes = execution, limit_bytes
        signal.signal(signal.SIGTERM, self._interrupt)  # again: the last handler may have replaced it

    def end(self) -> None:
        self._execution = None

    def _interrupt(self, _number: int, _frame: Any) -> None:
        """Raise `AttemptStopped` in a sync handler. Process managers send SIGTERM to all processes: that is ignored."""
        self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        reason = None if self._execution is None else self._execution.read_stop()
        if reason is not None and self._is_interruptible:
            self._is_interruptible = False
            raise AttemptStopped(reason.value)

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Let a signal have its effect after the block. Signals interrupt the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        was_interruptible, self._is_interruptible = self._is_interruptible, False
        yield
        if was_interruptible:
            self._is_interruptible = True
            if self._execution is not None and self._execution.is_asked_to_stop:
                self._raise_if_stopped()

    def sync(self, job: Job, ctx: Context, call: SyncCall) -> Any:
        try:
            self._limit(self._limit_bytes)
            self._is_interruptible = True
            self._raise_if_stopped()  # the signal may have come before; its reason is sent before it
            return call(job, ctx)
        except MemoryError as error:
            self._raise_limit(error)
        finally:
            self._is_interruptible = False
            self._limit(0)

    async def aio(self, job: Job, ctx: Context, call: AsyncCall) -> Any:
        try:
            self._limit(self._limit_bytes)
            return await call(job, ctx)
        except MemoryError as error:
            self._raise_limit(error)
        finally:
            self._limit(0)

    def _limit(self, limit_bytes: int) -> None:
        if self._limit_bytes:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes or hard, hard))

    def _raise_limit(self, error: MemoryError) -> NoReturn:
        if not self._limit_bytes:
            raise error
        self._limit(0)
        raise MemoryLimitReached(self._limit_bytes) from error


class ChildRuntime(ThreadRuntime):
    """A runtime without threads: sync handlers run in the calling thread, async ones on an event loop in it."""

    def __init__(self) -> None:
        super().__init__(sync_threads=1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: Coroutine[Any, Any, None] | None = None
        self._task: asyncio.Task[None] | None = None

    def run_sync(self, work: Callable[[], None], on_idle: Callable[[], None]) -> None:
        work()
        on_idle()

    def run_async(self, works: Sequence[AsyncWork], observer: AsyncObserver) -> None:
        [(self._waiting, key)] = works
        observer.suspended(key, self.cancel)

    def run_waiting(self, execution: ChildExecution, descriptor: int) -> None:
        """Run the coroutine of an async handler to its end. A message of the worker on *descriptor* may cancel it."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        loop = self._event_loop()
        self._task = loop.create_task(waiting)
        loop.add_reader(descriptor, execution.read_stop)
        try:
            loop.run_until_complete(self._task)
        finally:
            loop.remove_reader(descriptor)
            self._task = None

    def complete(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run *work* to its end, and return its result."""
        return self._event_loop().run_until_complete(work)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop


def _use_standard_descriptors(output: int) -> int:
    """Read nothing from stdin, and write stdout and stderr to the pipe of the worker. Return a descriptor of it."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    kept = os.dup(1)  # a handler may replace the others
    for descriptor in {null, output} - {0, 1, 2}:
        os.close(descriptor)
    return kept
