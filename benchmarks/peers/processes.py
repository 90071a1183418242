"""CPU time of processes, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_of(pid: int, *, with_ended_children: bool = False) -> float:
    """Return the CPU seconds of a process."""
    return _seconds(_stat(pid), with_ended_children=with_ended_children)


def cpu_of_session(leader: int) -> float:
    """Return the CPU seconds of all processes that *leader* has started, ended ones included."""
    total = 0.0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = _stat(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
            total += _seconds(fields, with_ended_children=True) if int(fields[3]) == leader else 0.0
    return total


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name: state, parent, process group, session and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _seconds(fields: list[str], *, with_ended_children: bool) -> float:
    return sum(map(int, fields[11 : 15 if with_ended_children else 13])) / os.sysconf("SC_CLK_TCK")
