"""Runs worker processes: replaces those that end, and restarts them one after the other on SIGHUP."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import click

from taskharbor._version import __version__
from taskharbor.cli.main import ExitCode
from taskharbor.cli.supervised import READY
from taskharbor.cli.systemd import SystemdNotifier
from taskharbor.core.text import duration_text
from taskharbor.service import SIGNAL_EXIT_BASE, is_same_stop
from taskharbor.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta

    from taskharbor.cli.health import HealthOptions

_LOG: Final = logging.getLogger("taskharbor.supervisor")
TICK_SECONDS: Final = 1.0
FIRST_BACKOFF_SECONDS: Final = 0.5
MAX_BACKOFF_SECONDS: Final = 30.0
STABLE_SECONDS: Final = 60.0
"""After how long without a crash the pause before a replacement is short again."""
KILL_AFTER_SECONDS: Final = 10.0
"""How much longer than their grace processes may take to stop, before they are killed."""
ABORT_SECONDS: Final = 1.0
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
MAX_MESSAGE: Final = 65_536


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """A worker process, and the supervisor's end of its link."""

    pid: int
    link: socket.socket
    started_at: float
    beat_at: float
    text: str = ""
    """What it runs, in the words of its start line; empty until it is ready."""
    is_stopping: bool = False
    kill_at: float | None = None
    """When to kill it with SIGKILL, after SIGABRT or SIGTERM: a process that is stopped or hangs handles neither."""
    received: bytes = b""

    @property
    def is_ready(self) -> bool:
        return bool(self.text)


@dataclass(slots=True, eq=False)
class Slot:
    """One of the processes to run: the current one, and while it is restarted, the next one."""

    number: int
    current: WorkerProcess | None = None
    next: WorkerProcess | None = None
    start_at: float | None = None
    """When to start a process again after one has crashed."""
    backoff: float = 0.0

    @property
    def processes(self) -> list[WorkerProcess]:
        return [process for process in (self.current, self.next) if process is not None]


@dataclass(slots=True, eq=False)
class Supervisor:
    """Runs *count* processes of *command* until a signal. *grace* is how long their jobs may take after it.

    The first process is started alone: if it cannot start, the supervisor ends with its exit code. A process that
    has not reported progress for *stuck_after* is killed, and logs the stacks of its threads before. So is one that is
    not ready after *start_timeout*, but not the first: it stops no other.
    """

    command: Callable[[int], Sequence[str]]
    count: int
    grace: timedelta
    stuck_after: timedelta
    systemd: SystemdNotifier
    start_timeout: timedelta
    slots: list[Slot] = field(init=False)
    exit_code: int = ExitCode.OK

    def __post_init__(self) -> None:
        self.slots = [Slot(number) for number in range(1, self.count + 1)]
        self._selector = selectors.DefaultSelector()
        self._retired: list[WorkerProcess] = []
        self._signals: deque[int] = deque()
        self._to_restart: deque[Slot] = deque()
        self._is_started = False
        self._stopped_at: float | None = None
        self._checked_at = time.monotonic()

    _selector: selectors.BaseSelector = field(init=False)
    _retired: list[WorkerProcess] = field(init=False)
    _signals: deque[int] = field(init=False)
    _to_restart: deque[Slot] = field(init=False)
    _is_started: bool = field(init=False)
    _stopped_at: float | None = field(init=False)
    _checked_at: float = field(init=False)

    def run(self) -> int:
        """Run until a signal, and return the exit code."""
        waker, woken = socket.socketpair()
        for each in (waker, woken):
            each.settimeout(0)
        self._selector.register(woken, selectors.EVENT_READ)
        before = {number: signal.signal(number, lambda number, _: self._signals.append(number)) for number in SIGNALS}
        wakeup_before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        try:
            self._start(self.slots[0])
            while self._stopped_at is None or self._processes():
                self._turn(woken)
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            for process in self._processes():
                _kill(process, signal.SIGKILL)
            self._selector.close()
            waker.close()
            woken.close()
        if not self.exit_code:
            _LOG.info("supervisor stopped")
        return self.exit_code

    def _turn(self, woken: socket.socket) -> None:
        for key, _ in self._selector.select(self._pause_seconds()):
            if key.fileobj is woken:
                with suppress(BlockingIOError):
                    woken.recv(MAX_MESSAGE)
            else:
                self._read(key.data)
        while self._signals:
            self._handle(self._signals.popleft())
        for pid, status in _reaped():
            self._ended(pid, os.waitstatus_to_exitcode(status))
        if self._stopped_at is None:
            self._replace_ended()
            self._restart_next()
            self._kill_stuck()
            self._report()
        elif time.monotonic() > self._stopped_at + self.grace.total_seconds() + KILL_AFTER_SECONDS:
            for process in self._processes():
                _LOG.error("worker process %d did not stop in time; killing it", process.pid)
                _kill(process, signal.SIGKILL)

    def _pause_seconds(self) -> float:
        """Return when to look again if nothing happens: at the next replacement, or to check on progress."""
        starts = [slot.start_at for slot in self.slots if slot.start_at is not None]
        return min([TICK_SECONDS, *(max(0.0, start_at - time.monotonic()) for start_at in starts)])

    def _processes(self) -> list[WorkerProcess]:
        return [*self._retired, *(process for slot in self.slots for process in slot.processes)]

    def _start_or_wait(self, slot: Slot) -> None:
        """Start a process; try again later if the system has no memory, processes or descriptors left for it."""
        try:
            self._start(slot)
        except OSError as error:
            slot.backoff = _longer(slot.backoff)
            slot.start_at = time.monotonic() + slot.backoff
            text = "no worker process can be started; trying again in %s: %s"
            _LOG.error(text, duration_text(slot.backoff), error)

    def _start(self, slot: Slot) -> None:
        ours, theirs = socket.socketpair()
        with ExitStack() as opened, theirs:
            opened.enter_context(ours)
            command = [*self.command(slot.number), "--supervisor-fd", str(theirs.fileno())]
            if slot.current is not None or self._retired:
                command.append("--is-successor")  # the old process has the health port until it ends
            # In a process group of its own: Ctrl-C must reach only the supervisor, which forwards it once.
            started = subprocess.Popen(  # noqa: S603  the command of this process
                command,
                env=child_environment(url=None),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
            opened.pop_all()
        started.returncode = 0  # it is reaped here, with all others
        ours.settimeout(0)
        now = time.monotonic()
        process = WorkerProcess(started.pid, ours, started_at=now, beat_at=now)
        self._selector.register(ours, selectors.EVENT_READ, process)
        if slot.current is None:
            slot.current, slot.start_at = process, None
        else:
            slot.next = process

    def _read(self, process: WorkerProcess) -> None:
        try:
            received = process.link.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:  # it is about to end
            with suppress(KeyError):
                self._selector.unregister(process.link)
            return
        *messages, process.received = (process.received + received).split(b"\n")
        for message in messages:
            process.beat_at = time.monotonic()
            if message.startswith(READY):
                process.text = message.removeprefix(READY).decode(errors="replace")
                self._became_ready()

    def _became_ready(self) -> None:
        if self._stopped_at is not None:
            return  # its message came just before it was stopped
        for slot in self.slots:
            if slot.current is None and slot.start_at is None:
                self._start_or_wait(slot)  # the first process has shown that it can start
        if not self._is_started and all(slot.current and slot.current.is_ready for slot in self.slots):
            self._is_started = True
            pids = ", ".join(str(process.pid) for process in self._processes())
            _LOG.info(
                "supervisor started: taskharbor %s; %d worker processes (%s), each with %s",
                __version__, self.count, pids, self._processes()[0].text,
            )  # fmt: skip
            self.systemd.ready(f"{self.count} worker processes")

    def _handle(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._begin_restart()
        elif number in (signal.SIGTERM, signal.SIGINT):
            if self._stopped_at is not None and is_same_stop(self._stopped_at):
                return
            is_second = self._stopped_at is not None
            text = "ending %d worker processes now" if is_second else "stopping %d worker processes"
            _LOG.info(text, len(self._processes()))
            self._stop_all()

    def _stop_all(self) -> None:
        if self._stopped_at is None:
            self.systemd.stopping()
            self._stopped_at = time.monotonic()
        for process in self._processes():
            # A process that is starting has nothing to release.
            _kill(process, signal.SIGTERM if process.is_ready else signal.SIGKILL)

    def _begin_restart(self) -> None:
        if self._stopped_at is not None:
            return
        _LOG.info("restarting %d worker processes one after the other", self.count)
        self.systemd.reloading()
        for slot in self.slots:
            if slot.next is not None:  # of a restart before: the code may have changed since it was loaded
                outdated, slot.next = slot.next, None
                self._retire(outdated)
        self._to_restart = deque(self.slots)

    def _restart_next(self) -> None:
        """Start the next process of a slot. When it is ready, stop the current one, and wait until that has ended."""
        if not self._to_restart or not self._is_started or self._retired:
            return
        slot = self._to_restart[0]
        if slot.next is None and slot.current is not None:
            try:
                self._start(slot)
            except OSError as error:
                self._restart_failed(f"no worker process can be started: {error}")
                return
        elif slot.next is not None and slot.next.is_ready:
            old, slot.current, slot.next = slot.current, slot.next, None
            if old is not None:
                self._retire(old)
        elif slot.current is None:
            return  # it has crashed, and is replaced: that is a restart too
        else:
            return
        if slot.next is None:
            self._to_restart.popleft()
            if not self._to_restart:
                self.systemd.ready(f"{self.count} worker processes")

    def _restart_failed(self, reason: str) -> None:
        self._to_restart.clear()
        _LOG.error("%s; the others keep running with the old code", reason)
        self.systemd.ready("restart failed")

    def _retire(self, process: WorkerProcess) -> None:
        process.is_stopping = True
        process.kill_at = time.monotonic() + self.grace.total_seconds() + KILL_AFTER_SECONDS
        self._retired.append(process)
        _kill(process, signal.SIGTERM)

    def _ended(self, pid: int, code: int) -> None:
        for process in [each for each in self._retired if each.pid == pid]:
            self._retired.remove(process)
            self._forget(process)
        for slot in self.slots:
            if slot.next is not None and slot.next.pid == pid:
                self._forget(slot.next)
                slot.next = None
                self._restart_failed(f"new worker process {pid} {_ending(code)} before it was ready")
            elif slot.current is not None and slot.current.pid == pid:
                self._current_ended(slot, slot.current, code)

    def _current_ended(self, slot: Slot, process: WorkerProcess, code: int) -> None:
        self._read(process)  # it may have become ready just before its end
        slot.current = None
        self._forget(process)
        if slot.next is not None:
            slot.current, slot.next = slot.next, None
            return
        if self._stopped_at is not None:
            return
        if not self._is_started and not process.is_ready:
            # Whatever prevents its start will prevent the start of others; it has printed the reason.
            self.exit_code = SIGNAL_EXIT_BASE - code if code < 0 else code or ExitCode.FAILURE
            self._stop_all()
            return
        slot.backoff = self._next_backoff(slot, process, code)
        slot.start_at = time.monotonic() + slot.backoff
        log = _LOG.info if code in (ExitCode.OK, ExitCode.RECYCLED) else _LOG.warning
        log("worker process %d %s; replacing it in %s", process.pid, _ending(code), duration_text(slot.backoff))

    def _next_backoff(self, slot: Slot, process: WorkerProcess, code: int) -> float:
        if code in (ExitCode.RECYCLED, ExitCode.SLOTS_LOST) and process.is_ready:
            return 0.0
        is_stable = time.monotonic() > process.started_at + STABLE_SECONDS
        return FIRST_BACKOFF_SECONDS if is_stable else _longer(slot.backoff)

    def _forget(self, process: WorkerProcess) -> None:
        with suppress(KeyError):
            self._selector.unregister(process.link)
        process.link.close()

    def _replace_ended(self) -> None:
        for slot in self.slots:
            if slot.current is None and slot.start_at is not None and time.monotonic() >= slot.start_at:
                self._start_or_wait(slot)

    def _kill_stuck(self) -> None:
        now = time.monotonic()
        # While this process did not run, nothing was read. Often nothing else ran either, as in a frozen container.
        unwatched = max(0.0, now - self._checked_at - TICK_SECONDS)
        self._checked_at = now
        for process in self._processes():
            process.beat_at += min(unwatched, now - process.beat_at)
            silent = now - process.beat_at  # since its start, if it is not ready
            limit = self.stuck_after if process.is_ready else self.start_timeout
            if self._is_started and not process.is_stopping and silent > limit.total_seconds():
                problem = "made no progress for" if process.is_ready else "was not ready after"
                _LOG.error("worker process %d %s %s; killing it", process.pid, problem, duration_text(silent))
                process.is_stopping, process.kill_at = True, now + ABORT_SECONDS
                _kill(process, signal.SIGABRT)  # it prints the stacks of its threads
            if process.kill_at is not None and now >= process.kill_at:
                if process in self._retired:
                    _LOG.error("worker process %d did not stop in time; killing it", process.pid)
                _kill(process, signal.SIGKILL)

    def _report(self) -> None:
        """Feed the watchdog of systemd while every process makes progress."""
        if self._is_started and not any(
            process.is_stopping and process not in self._retired for process in self._processes()
        ):
            self.systemd.feed()


def supervise(count: int, *, grace: timedelta, start_timeout: timedelta, health: HealthOptions) -> int:
    """Run *count* processes of the current command line until a signal, and return the exit code."""
    words = click.get_current_context().find_root().obj

    def command(number: int) -> list[str]:
        # Each process has a port of its own. The last of two options counts.
        port = ["--health-port", str(health.port + number)] if health.port else []
        return [sys.executable, "-m", "taskharbor.cli", *words, *port]

    supervisor = Supervisor(
        command=command,
        count=count,
        grace=grace,
        stuck_after=health.stuck_after,
        systemd=SystemdNotifier(),
        start_timeout=start_timeout,
    )
    return supervisor.run()


def _longer(backoff: float) -> float:
    return min(max(2 * backoff, FIRST_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS)


def _reaped() -> Iterator[tuple[int, int]]:
    """Reap all children that have ended. As process 1, that includes processes that lost their parent."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _kill(process: WorkerProcess, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
