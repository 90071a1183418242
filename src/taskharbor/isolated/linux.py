"""Calls of Linux that isolated processes need: death signals, orphans and memory."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
OOM_SCORE: Final = "500"
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, and end it now if that has happened already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has ended, wherever they are in a process group."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def prefer_in_oom_kill() -> None:
    """Have the kernel kill this process before the worker if the memory of the machine is exhausted."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, "ascii")


def children_of_this_process() -> set[int]:
    """Return the child processes of all threads of this process, with those that have ended and are not reaped."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended, or the kernel has no such file
            found.update(map(int, (thread / "children").read_bytes().split()))
    return found


def has_children() -> bool:
    """Return whether this process has children, in a microsecond."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def memory_of(pid: int) -> int:
    """Return how much physical memory a process uses, in bytes; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:  # noqa: PTH123  a third of the time of a Path
            return int(file.read(256).split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def memory_of_tree(pid: int, limit_bytes: int) -> int:
    """Return how much physical memory a process and its descendants use, in bytes.

    Pages that several of them share are counted once. That takes long, so it is done only if the sum of their memory
    is above *limit_bytes*.
    """
    memory, others = memory_of(pid), descendants_of(pid)
    if not others or memory > limit_bytes:
        return memory
    if (total := memory + sum(map(memory_of, others))) <= limit_bytes:
        return total
    return max(memory, sum(map(_proportional_memory_of, {pid, *others})))


def descendants_of(pid: int) -> set[int]:
    """Return the processes that *pid* has started, that these have started, and so on."""
    found, level = set[int](), {pid}
    while level := {child for each in level for child in _children_of(each)} - found:
        found |= level
    return found


def _children_of(pid: int) -> set[int]:
    found: set[int] = set()
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  a third of the time of a Path
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:  # noqa: PTH123  as above
                found.update(map(int, file.read().split()))
    return found


def _proportional_memory_of(pid: int) -> int:
    """Return the memory of a process, with its share of pages that others use, too; 0 if it has ended."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123  as above
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def unclean() -> str:
    """Return why this process must not fork: it has threads or connections. Empty if it may."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"it has started {threads - 1} threads"
    return ""


def open_sockets() -> set[int]:
    """Return the descriptors of this process that are sockets."""
    found: set[int] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                found.add(int(entry.name))
    return found


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
