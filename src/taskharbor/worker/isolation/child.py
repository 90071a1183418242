"""The worker's side of one child process: runs an attempt in it, and finds out how it ended."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.model import Progress
from taskharbor.observability.job_log import job_fields
from taskharbor.worker.execution import StopReason
from taskharbor.worker.isolation.errors import ChildDied, ChildEnd, ChildNotReady, ChildNotStarted, MemoryLimitReached
from taskharbor.worker.isolation.job_queue import MAX_PACKET_BYTES
from taskharbor.worker.isolation.messages import job_values, outcome_from_message
from taskharbor.worker.isolation.output import ChildOutput
from taskharbor.worker.isolation.wire import FrameTooLarge, Wire, frame_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from taskharbor.core.outcome import Outcome
    from taskharbor.worker.execution import Execution
    from taskharbor.worker.isolation.job_queue import JobQueue
    from taskharbor.worker.isolation.wire import Frame

_LOG: Final = logging.getLogger("taskharbor.worker")
STOP_GRACE_SECONDS: Final = 1.0
"""How long a handler may take to end after it was asked to stop, until its process is killed."""
END_SECONDS: Final = 0.4
"""How long the death of a killed process may take until its attempt does not wait for it any longer."""
EXIT_SECONDS: Final = 0.2
"""How long a process that has closed its link may take to end by itself."""
POLL_SECONDS: Final = 0.5
BRIEF_SECONDS: Final = 0.005
"""Attempts are queued in a child while its attempts are shorter. If one takes longer, those after it are taken back."""
MAX_QUEUED: Final = 8


@dataclass(frozen=True, slots=True)
class ChildReport:
    """The outcome that a child has decided on; None if there is nothing to record.

    ``is_stopped``: the child knew that the attempt must stop.
    """

    outcome: Outcome | None
    is_stopped: bool


@dataclass(frozen=True, slots=True)
class IsolatedCall:
    """An attempt for a child: its memory limit, or 0, the trace context of its span, and what saves its progress."""

    execution: Execution
    limit_bytes: int
    trace: Sequence[str] | None
    save: Callable[[Execution, Progress], None]

    def message(self, *, is_measured: bool) -> dict[str, Any]:
        return {
            "run": job_values(self.execution.claim.job),
            # All processes of a machine have the same monotonic clock.
            "claimed_at": self.execution.claimed_at,
            "ends_at": self.execution.ends_at,
            "memory": self.limit_bytes,
            "is_measured": is_measured,
            "trace": self.trace,
        }


class Child:
    """A child process that runs one attempt at a time. Brief ones are queued, so that it need not wait for the worker.

    *link* leads to the child, *supervision* to the zygote, which is its parent: it sends signals, and reports how the
    child ended. If this side of *supervision* ends, the zygote kills the child.
    """

    def __init__(self, link: socket.socket, supervision: socket.socket, output: int, jobs: JobQueue) -> None:
        self._link, self._supervision, self._jobs = Wire(link), Wire(supervision), jobs
        self._output = ChildOutput(output)
        self._poll = select.poll()
        for descriptor in (link.fileno(), supervision.fileno(), output):
            self._poll.register(descriptor, select.POLLIN)
        self._idle_poll = select.poll()
        for end in (link, supervision):
            self._idle_poll.register(end.fileno(), select.POLLIN)
        self._lock = threading.Lock()
        self._execution: Execution | None = None
        self._sent: deque[Execution] = deque()  # and not ended: the child runs the first, the others wait
        self._returned: list[Execution] = []
        self._gives_up_at: float | None = None
        self._is_link_over = self._is_broken = self._is_sending = False
        self.limit_bytes = 0
        self._end: ChildEnd | None = None
        self.pid = 0
        self.jobs = 0
        self.max_jobs = 1
        self.last_seconds = inf
        """How long its last attempt took."""
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
                    end = self._wait_for_end()
                    self._output.read_rest()
                    raise ChildNotStarted("; ".join([str(end), *self._output.last_lines()[-1:]]))
        raise ChildNotReady(timeout)

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended. A child that ended while it was idle must not get an attempt."""
        return self.is_usable and not self._idle_poll.poll(0)

    @property
    def free_places(self) -> int:
        """How many more attempts may be queued now. Only brief ones are, and not those of a child that is measured."""
        if not self.is_usable or self.is_measured or self.last_seconds > BRIEF_SECONDS:
            return 0
        waiting = len(self._sent)
        return 0 if waiting > MAX_QUEUED / 2 else min(MAX_QUEUED, self.max_jobs - self.jobs) - waiting

    def queue(self, call: IsolatedCall) -> bool:
        """Send an attempt that will run after those before it; return whether that was possible.

        It is returned by `run` if it does not begin soon, and must be passed to `run` in its turn otherwise. No attempt
        is queued behind one that `run` itself has sent.
        """
        frame = frame_of(call.message(is_measured=False), call.execution.claim.job.payload)
        with self._lock:
            may_queue = self.is_usable and call.limit_bytes == self.limit_bytes and len(frame) <= MAX_PACKET_BYTES
            if not may_queue or not self._jobs.put(frame):
                return False
            self._sent.append(call.execution)
        return True

    def run(self, call: IsolatedCall, on_returned: Callable[[Sequence[Execution]], None]) -> ChildReport:
        """Run an attempt, and return what the child has decided. Raises `ChildDied` and `MemoryLimitReached`.

        Raises `ChildNotStarted` if the child was idle when it ended: the attempt has not begun. *on_returned* is called
        with queued attempts that will not run in this child.
        """
        execution = call.execution
        self._output.begin()
        self.jobs += 1
        started_at = time.monotonic()
        with self._lock:
            self._execution = execution
        execution.set_stop(self._stop_running)
        try:
            return self._exchange(call, started_at + BRIEF_SECONDS, on_returned)
        except (FrameTooLarge, ValueError, KeyError, TypeError) as error:
            # The child sent something else than frames: its handler has written to the connection.
            self.is_usable = False
            raise ChildDied(self._wait_for_end(), [*self._output.last_lines(), f"invalid frame: {error}"]) from None
        except BaseException:  # of user code in the log, for example: the child may still run the attempt
            self.is_usable, self._is_broken = False, True
            raise
        finally:
            self.last_seconds = time.monotonic() - started_at
            self._finish(execution, on_returned)

    def _finish(self, execution: Execution, on_returned: Callable[[Sequence[Execution]], None]) -> None:
        with self._lock:
            if not self.is_usable:
                self._take_back()  # first: the child may not have taken this attempt either
            if self._sent and self._sent[0] is execution:
                self._sent.popleft()
            self._execution = None
        execution.clear_stop()
        self._return(on_returned)

    def _exchange(
        self, call: IsolatedCall, waits_until: float, on_returned: Callable[[Sequence[Execution]], None]
    ) -> ChildReport:
        if self._is_broken:  # it is unknown which attempt its next frame belongs to
            raise self._death(call.limit_bytes)
        if not self._sent:
            self._send(call)
        while (frame := self._receive(waits_until)) is None or "ended" not in frame[0]:
            if frame is not None:
                self._handle(call, frame[0])
            elif self._is_link_over or (self._gives_up_at is not None and time.monotonic() > self._gives_up_at):
                raise ChildNotStarted("it has ended") if self._was_idle() else self._death(call.limit_bytes)
            if len(self._sent) > 1 and time.monotonic() > waits_until:
                with self._lock:
                    self._take_back(keeps_first=True)
                self._return(on_returned)
        return self._ended(call.execution, *frame)

    def _send(self, call: IsolatedCall) -> None:
        if call.limit_bytes != self.limit_bytes:
            self.limit_bytes = call.limit_bytes
            self._command(memory=call.limit_bytes)
        payload = call.execution.claim.job.payload
        frame = frame_of(call.message(is_measured=self.is_measured), payload)
        with self._lock:
            if call.execution.stop_reason is not None and not self.is_usable:
                return  # it was stopped before it was sent, and the child is about to be killed
            self._sent.append(call.execution)
            is_queued = len(frame) <= MAX_PACKET_BYTES and self._jobs.put(frame)
            self._is_sending = not is_queued
        if not is_queued:
            with suppress(OSError):  # it has ended, which the caller finds out
                self._link.socket.sendall(frame)
            with self._lock:
                self._is_sending = False

    def _take_back(self, *, keeps_first: bool = False) -> int:
        """Take queued attempts back from the child; return how many it has taken, and has not ended as far as known.

        With *keeps_first*, not the first one, if that has not begun. The caller has the lock.
        """
        packets = self._jobs.take_back()
        taken = len(self._sent) - len(packets)
        if keeps_first and packets and taken == 0:
            self._jobs.put(packets[0])
            taken = 1
        while len(self._sent) > taken:
            execution = self._sent.pop()
            if execution is not self._execution:
                self._returned.insert(0, execution)
        return taken

    def _was_idle(self) -> bool:
        """Return whether the child has ended before it took the attempt, and not because of a stop.

        Only if it has run one before: otherwise it would be replaced without end if none of them can run it.
        """
        with self._lock:
            return self._gives_up_at is None and self.jobs > 1 and self._take_back() == 0

    def _return(self, on_returned: Callable[[Sequence[Execution]], None]) -> None:
        with self._lock:
            returned, self._returned = self._returned, []
        if returned:
            on_returned(returned)

    def _ended(self, execution: Execution, message: Mapping[str, Any], body: bytes) -> ChildReport:
        self.memory_bytes = message["rss"]
        if message["is_waiting"]:
            self._output.read_rest()
        else:
            self._output.flush()  # what is in the pipe now is of the next attempt
        if message["leftovers"]:
            self.is_usable = False
            job, text = execution.claim.job, "job %s (%s) has left %d processes behind; killing them"
            _LOG.warning(text, job.id, job.type, message["leftovers"], extra=job_fields(job))
        elif message["is_waiting"]:  # until its output was read
            self._link.send_now({"continue": True})
        ended, result = message["ended"], body if message["has_result"] else None
        outcome = None if ended is None else outcome_from_message(ended, result)
        return ChildReport(outcome, message["is_stopped"])

    def _receive(self, waits_until: float = inf) -> Frame | None:
        """Return the next frame of the child; None if there is none yet, or if the link has ended."""
        frame = self._link.next()
        if frame is not None or self._is_link_over:
            return frame
        has_queued = len(self._sent) > 1
        pause = min(POLL_SECONDS, max(0.0, waits_until - time.monotonic())) if has_queued else POLL_SECONDS
        ready = {descriptor for descriptor, _ in self._poll.poll(pause * 1_000)}
        if self._link.fileno() in ready:
            if not self._link.pump():
                self._is_link_over, self.is_usable = True, False
        elif self._output.descriptor in ready:
            self._read_output()
        elif self._supervision.fileno() in ready:  # it has ended, or its zygote; a copy of it may hold the link open
            self._is_link_over, self.is_usable = True, False
        return self._link.next()

    def _read_output(self) -> None:
        """Read output, but not before the frames that were sent before it: it may be that of the next attempt."""
        with suppress(BlockingIOError):
            self._is_link_over = not self._link.pump(blocks=False)
            self.is_usable = self.is_usable and not self._is_link_over
            return
        if not self._output.read():
            self._poll.unregister(self._output.descriptor)

    def _handle(self, call: IsolatedCall, message: Mapping[str, Any]) -> None:
        if "progress" in message:
            done, total, note = message["progress"]
            call.save(call.execution, Progress(done, total, note))
        elif "completed" in message:
            call.execution.is_completed = True
        else:
            self._handle_log(message)

    def _handle_log(self, message: Mapping[str, Any]) -> None:
        if "log" in message:
            self._output.log(message["log"])

    def _command(self, **command: float) -> None:
        self._supervision.send_now(command)  # if the zygote is gone, so is the child

    def _stop_running(self) -> None:
        """Ask the running handler to stop, and let the zygote kill it if it does not. Any thread may call this."""
        with self._lock:
            execution = self._execution
            reason = None if execution is None else execution.stop_reason
            if reason is None:
                return  # it has ended meanwhile, and the child may run another attempt
            taken = self._take_back()
            if taken > 1:
                return  # the child has ended it, and runs the next attempt
            self.is_usable = False
            grace = 0.0 if reason is StopReason.LOST else STOP_GRACE_SECONDS
            self._gives_up_at = time.monotonic() + grace + END_SECONDS
            if taken and not self._is_sending:  # else its handler has not begun
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
        self._jobs.close()
