"""The worker's side of one child process: runs an attempt in it, and finds out how it ended."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.model import Progress
from taskharbor.worker.execution import StopReason
from taskharbor.worker.isolation.errors import ChildDied, ChildEnd, ChildNotReady, ChildNotStarted, MemoryLimitReached
from taskharbor.worker.isolation.messages import job_values, outcome_from_message
from taskharbor.worker.isolation.output import ChildOutput
from taskharbor.worker.isolation.wire import FrameTooLarge, Wire

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from taskharbor.core.outcome import Outcome
    from taskharbor.worker.execution import Execution
    from taskharbor.worker.isolation.wire import Frame

_LOG: Final = logging.getLogger("taskharbor.worker")
STOP_GRACE_SECONDS: Final = 1.0
"""How long a handler may take to end after it was asked to stop, until its process is killed."""
END_SECONDS: Final = 0.4
"""How long the death of a killed process may take until its attempt does not wait for it any longer."""
EXIT_SECONDS: Final = 0.2
"""How long a process that has closed its link may take to end by itself."""
POLL_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class ChildReport:
    """The outcome that a child has decided on; None if there is nothing to record.

    ``is_stopped``: the child knew that the attempt must stop.
    """

    outcome: Outcome | None
    is_stopped: bool


class Child:
    """A child process that runs one attempt at a time.

    *link* leads to the child, *supervision* to the zygote, which is its parent: it sends signals, and reports how the
    child ended. If this side of *supervision* ends, the zygote kills the child.
    """

    def __init__(self, link: socket.socket, supervision: socket.socket, output: int) -> None:
        self._link, self._supervision = Wire(link), Wire(supervision)
        self._output = ChildOutput(output)
        self._poll = select.poll()
        for descriptor in (link.fileno(), supervision.fileno(), output):
            self._poll.register(descriptor, select.POLLIN)
        self._idle_poll = select.poll()
        for end in (link, supervision):
            self._idle_poll.register(end.fileno(), select.POLLIN)
        self._lock = threading.Lock()
        self._execution: Execution | None = None
        self._gives_up_at: float | None = None
        self._is_sent = self._is_link_over = False
        self._limit_bytes = 0
        self._end: ChildEnd | None = None
        self.pid = 0
        self.jobs = 0
        self.memory_bytes = 0
        """How much physical memory it used after its last job, if that is measured: it takes 15 µs."""
        self.is_measured = False
        self.is_usable = True
        """Whether it can run another attempt: not after a stop, an error of the connection, or leftover processes."""
        self.idle_since = 0.0

    def wait_until_ready(self, *, timeout: float) -> None:
        """Wait until the child has entered its lifespan. Raises `ChildNotStarted`."""
        until = time.monotonic() + timeout
        self._supervision.socket.settimeout(timeout)
        with suppress(TimeoutError):
            started = self._supervision.receive()
            if started is None or "pid" not in started[0]:
                raise ChildNotStarted("its zygote has ended" if started is None else str(started[0].get("error")))
            self.pid = int(started[0]["pid"])
            while time.monotonic() < until:
                frame = self._receive()
                if frame is not None:
                    if "ready" in frame[0]:
                        return
                    self._handle_log(frame[0])
                elif not self.is_usable:
                    lines = self._output.last_lines()
                    raise ChildNotStarted("; ".join([str(self._wait_for_end()), *lines[-1:]]))
        raise ChildNotReady(timeout)

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended. A child that ended while it was idle must not get an attempt."""
        return self.is_usable and not self._idle_poll.poll(0)

    def run(self, execution: Execution, limit_bytes: int, save: Callable[[Execution, Progress], None]) -> ChildReport:
        """Run an attempt, and return what the child has decided. Raises `ChildDied` and `MemoryLimitReached`."""
        self._output.begin()
        self.jobs += 1
        with self._lock:
            self._execution, self._is_sent = execution, False
        execution.set_stop(self._stop_running)
        try:
            return self._exchange(execution, limit_bytes, save)
        except (FrameTooLarge, ValueError, KeyError, TypeError) as error:
            # The child sent something else than frames: its handler has written to the connection.
            self.is_usable = False
            raise ChildDied(self._wait_for_end(), [*self._output.last_lines(), f"invalid frame: {error}"]) from None
        except BaseException:  # of user code in the log, for example: the child may still run the attempt
            self.is_usable = False
            raise
        finally:
            with self._lock:
                self._execution = None
            execution.clear_stop()

    def _exchange(
        self, execution: Execution, limit_bytes: int, save: Callable[[Execution, Progress], None]
    ) -> ChildReport:
        job = execution.claim.job
        self._set_limit(limit_bytes)
        with suppress(OSError):  # it has ended, which the next lines find out
            message = {"run": job_values(job), "memory": limit_bytes, "is_measured": self.is_measured}
            self._link.send(message, job.payload)
            self._is_sent = True
        while (frame := self._receive()) is None or "ended" not in frame[0]:
            if frame is not None:
                self._handle(execution, frame[0], save)
            elif self._is_link_over or (self._gives_up_at is not None and time.monotonic() > self._gives_up_at):
                raise self._death(limit_bytes)
        self._output.read_rest()
        return self._ended(execution, *frame)

    def _ended(self, execution: Execution, message: Mapping[str, Any], body: bytes) -> ChildReport:
        self.memory_bytes = message["rss"]
        if message["leftovers"]:
            self.is_usable = False
            job, text = execution.claim.job, "job %s (%s) has left %d processes behind; killing them"
            _LOG.warning(text, job.id, job.type, message["leftovers"])
        ended, result = message["ended"], body if message["has_result"] else None
        outcome = None if ended is None else outcome_from_message(ended, result)
        return ChildReport(outcome, message["is_stopped"])

    def _receive(self) -> Frame | None:
        """Return the next frame of the child; None if there is none yet, or if the link has ended."""
        frame = self._link.next()
        if frame is not None or self._is_link_over:
            return frame
        ready = {descriptor for descriptor, _ in self._poll.poll(POLL_SECONDS * 1_000)}
        if self._output.descriptor in ready and not self._output.read():
            self._poll.unregister(self._output.descriptor)
        if self._link.fileno() in ready:
            if not self._link.pump():
                self._is_link_over, self.is_usable = True, False
        elif self._supervision.fileno() in ready:  # it has ended, or its zygote; a copy of it may hold the link open
            self._is_link_over, self.is_usable = True, False
        return self._link.next()

    def _handle(self, execution: Execution, message: Mapping[str, Any], save: Callable[..., None]) -> None:
        if "progress" in message:
            done, total, note = message["progress"]
            save(execution, Progress(done, total, note))
        elif "completed" in message:
            execution.is_completed = True
        else:
            self._handle_log(message)

    def _handle_log(self, message: Mapping[str, Any]) -> None:
        if "log" in message:
            self._output.log(message["log"])

    def _set_limit(self, limit_bytes: int) -> None:
        if limit_bytes != self._limit_bytes:
            self._limit_bytes = limit_bytes
            self._command(memory=limit_bytes)

    def _command(self, **command: float) -> None:
        self._supervision.send_now(command)  # if the zygote is gone, so is the child

    def _stop_running(self) -> None:
        """Ask the running handler to stop, and let the zygote kill it if it does not. Any thread may call this."""
        with self._lock:
            execution = self._execution
            reason = None if execution is None else execution.stop_reason
            if reason is None:
                return  # it has ended meanwhile, and the child may run another attempt
            self.is_usable = False
            grace = 0.0 if reason is StopReason.LOST else STOP_GRACE_SECONDS
            self._gives_up_at = time.monotonic() + grace + END_SECONDS
            if self._is_sent:  # else its handler has not begun
                self._link.send_now({"stop": reason.name})
            self._command(stop=grace)

    def _death(self, limit_bytes: int) -> ChildDied | MemoryLimitReached:
        end = replace(self._wait_for_end(), is_stopped=self._gives_up_at is not None)
        if end.code is None:  # no zygote is left that could kill what the child has started
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._output.read_rest()
        if end.is_over_memory:
            return MemoryLimitReached(limit_bytes, end.peak_bytes)
        return ChildDied(end, self._output.last_lines())

    def _wait_for_end(self) -> ChildEnd:
        """Return how the child ended. Have it killed if it still runs: it may have closed its link."""
        if self._is_link_over and self._gives_up_at is None:
            # A process closes its descriptors before it has ended. If it was killed meanwhile, it would seem to be
            # the worker that has killed it.
            self._read_end(timeout=EXIT_SECONDS)
        if self._end is None:
            self._command(stop=0.0)
            self._read_end(timeout=END_SECONDS)
        return self._end or ChildEnd()

    def _read_end(self, *, timeout: float) -> None:
        self._supervision.socket.settimeout(timeout)
        with suppress(TimeoutError, FrameTooLarge, ValueError):
            while (frame := self._supervision.receive()) is not None:
                if "code" in frame[0]:
                    self._end = ChildEnd(
                        code=frame[0]["code"],
                        peak_bytes=frame[0]["peak"],
                        is_killed=frame[0]["is_killed"],
                        is_over_memory=frame[0]["is_over_memory"],
                    )
                    return

    def retire(self) -> None:
        """Let the child leave its lifespan and end; the zygote kills it if that takes too long."""
        self._command(retire=1)
        self._link.close()

    def close(self) -> None:
        """Have the child killed if it was not retired, and close the descriptors."""
        self._link.close()
        self._supervision.close()
        self._output.close()
