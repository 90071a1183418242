"""The zygote: imports the app once, forks a child for each request of the worker, and ends children."""

from __future__ import annotations

import gc
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from taskharbor.isolated import linux
from taskharbor.worker.isolation.wire import FrameTooLarge, Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.isolated.child import ChildEnds, IsolatedApp

    StartChild = Callable[[ChildEnds, set[int]], int]

MEMORY_POLL_SECONDS: Final = 0.05
STRAY_POLL_SECONDS: Final = 0.05
ABORT_SECONDS: Final = 0.1
"""How long before it is killed a child that does not stop is asked for its stack."""
RETIRE_SECONDS: Final = 5.0
"""How long a child may take to leave its lifespan."""
DESCRIPTORS: Final = 4
"""How many descriptors come with a request: the child's link, its supervision, its output and its jobs."""
START: Final = b"s"
FINISH: Final = b"q"


@dataclass(slots=True, eq=False)
class Supervised:
    """A child of the zygote. *link* leads to the worker, and *pidfd* becomes readable when the child has ended."""

    pid: int
    pidfd: int
    link: Wire
    abort_at: float | None = None
    kill_at: float | None = None
    limit_bytes: int = 0
    is_retiring: bool = False
    is_killed: bool = False
    is_over_memory: bool = False
    tree_bytes: int = 0
    is_open: bool = True


@dataclass(slots=True, eq=False)
class Zygote:
    """Serves one worker over *control*, in one thread, until the worker ends it or is gone.

    *start* makes a child process of its descriptors and of those that it must close, and returns its pid.
    Each child has a connection to the worker for its supervision. The worker asks with it to stop the child or to watch
    its memory; if it ends, the child is killed.
    """

    control: socket.socket
    start: StartChild
    children: dict[int, Supervised] = field(default_factory=dict)
    finish_at: float | None = None
    has_strays: bool = False
    selector: selectors.EpollSelector = field(default_factory=selectors.EpollSelector)

    def run(self) -> None:
        linux.adopt_orphans()
        self.control.setblocking(True)  # noqa: FBT003  a method of the standard library
        self.selector.register(self.control, selectors.EVENT_READ, self._serve)
        try:
            while self.finish_at is None or self.children or self.has_strays:
                self._turn()
        except EOFError:
            pass  # the worker is gone: its children must end with it
        finally:
            for child in self.children.values():
                self._kill(child)
            self._sweep()

    def _turn(self) -> None:
        for key, _ in self.selector.select(self._pause_seconds()):
            key.data()
        now = time.monotonic()
        for child in [*self.children.values()]:
            if child.kill_at is not None and now >= child.kill_at:
                self._kill(child)
            elif child.abort_at is not None and now >= child.abort_at:
                self._abort(child)
            elif child.limit_bytes and not child.is_killed:
                self._check_memory(child)
        if self.finish_at is not None and now >= self.finish_at:
            raise EOFError
        if self.has_strays:
            self._sweep()

    def _check_memory(self, child: Supervised) -> None:
        used = linux.memory_of_tree(child.pid, child.limit_bytes)
        if used > child.limit_bytes:
            child.is_over_memory, child.tree_bytes = True, used
            self._kill(child)

    def _pause_seconds(self) -> float | None:
        now = time.monotonic()
        times = [at for child in self.children.values() for at in (child.abort_at, child.kill_at) if at is not None]
        pauses = [max(0.0, at - now) for at in times]
        if any(child.limit_bytes for child in self.children.values()):
            pauses.append(MEMORY_POLL_SECONDS)
        if self.has_strays:
            pauses.append(STRAY_POLL_SECONDS)
        if self.finish_at is not None:
            pauses.append(max(0.0, self.finish_at - now))
        return min(pauses, default=None)

    def _serve(self) -> None:
        request, descriptors, _, _ = socket.recv_fds(self.control, 1, DESCRIPTORS)
        if request == START:
            self._start(*descriptors)
        elif request == FINISH:
            self.finish_at = time.monotonic() + RETIRE_SECONDS
        else:
            raise EOFError

    def _start(self, link: int, supervision: int, output: int, jobs: int) -> None:
        wire = Wire(socket.socket(fileno=supervision))
        try:
            pid = self.start((link, output, jobs), self._own_descriptors() | {supervision})
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            wire.send_now({"error": str(error)})
            wire.close()
            return
        finally:
            for end in (link, output, jobs):
                os.close(end)
        child = self.children[pid] = Supervised(pid, pidfd, wire)
        self.selector.register(pidfd, selectors.EVENT_READ, partial(self._ended, child))
        self.selector.register(wire, selectors.EVENT_READ, partial(self._read, child))
        wire.send_now({"pid": pid})

    def _own_descriptors(self) -> set[int]:
        """Return the descriptors that a forked child must close."""
        ends = [end for child in self.children.values() for end in (child.pidfd, child.link.fileno())]
        return {self.control.fileno(), self.selector.fileno(), *(end for end in ends if end >= 0)}

    def _read(self, child: Supervised) -> None:
        if not child.is_open:
            return  # it has ended in the same turn
        try:
            is_open = child.link.pump(blocks=False)
            while (frame := child.link.next()) is not None:
                self._obey(child, frame[0])
        except BlockingIOError:
            return
        except (FrameTooLarge, ValueError):
            is_open = False
        if not is_open:
            child.is_open = False
            self.selector.unregister(child.link)
            if not child.is_retiring:
                self._kill(child)

    def _obey(self, child: Supervised, command: dict[str, Any]) -> None:
        if "memory" in command:
            child.limit_bytes = int(command["memory"])
        elif "retire" in command:
            child.is_retiring, child.kill_at = True, time.monotonic() + RETIRE_SECONDS
        elif not command["stop"]:
            self._kill(child)
        elif child.kill_at is None:
            child.kill_at = time.monotonic() + float(command["stop"])
            child.abort_at = child.kill_at - ABORT_SECONDS
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)

    def _abort(self, child: Supervised) -> None:
        """Let a child that does not stop print its stack, which shows where, before it is killed."""
        child.abort_at, child.is_killed = None, True
        with suppress(OSError):
            resource.prlimit(child.pid, resource.RLIMIT_CORE, (0, 0))  # not a core dump, which may take long
            os.kill(child.pid, signal.SIGABRT)

    def _kill(self, child: Supervised) -> None:
        """Kill a child with its process group. It is not reaped yet, so that its pid is still its own."""
        child.abort_at = child.kill_at = None
        if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:  # else it has ended before
            child.is_killed = True
        for kill in (os.killpg, os.kill):  # it may not have made its group yet
            with suppress(ProcessLookupError):
                kill(child.pid, signal.SIGKILL)

    def _ended(self, child: Supervised) -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what its handler has started; before it is reaped
        _, status, usage = os.wait4(child.pid, 0)
        del self.children[child.pid]
        self.selector.unregister(child.pidfd)
        os.close(child.pidfd)
        if child.is_open:
            child.is_open = False
            self.selector.unregister(child.link)
            child.link.send_now(
                {
                    "code": os.waitstatus_to_exitcode(status),
                    "peak": max(usage.ru_maxrss * 1024, child.tree_bytes),
                    "is_killed": child.is_killed,
                    "is_over_memory": child.is_over_memory,
                }
            )
        child.link.close()
        self._sweep()

    def _sweep(self) -> None:
        """Kill the processes that ended children have left: they are now children of this one."""
        strays = linux.children_of_this_process() - self.children.keys() if linux.has_children() else set()
        for pid in strays:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        self.has_strays = bool(strays)


def forking(app: IsolatedApp) -> StartChild:
    """Return a function that forks children of this process, which has loaded *app*."""
    gc.freeze()  # objects of the app are shared by all children until one writes to them

    def fork(ends: ChildEnds, others: set[int]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            for descriptor in others:
                os.close(descriptor)
            code = app.serve(ends, parent=parent)
        finally:
            os._exit(code)

    return fork


def spawning(begin: dict[str, Any]) -> StartChild:
    """Return a function that starts children in new interpreters: they load the app again, as *begin* says."""

    def spawn(ends: ChildEnds, _others: set[int]) -> int:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            descriptors = (theirs.fileno(), *ends)
            command = [sys.executable, "-P", "-m", "taskharbor.isolated", *map(str, (*descriptors, os.getpid()))]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors)  # noqa: S603
            Wire(ours).send(begin)
        process.returncode = 0  # it is reaped with all others
        return process.pid

    return spawn
