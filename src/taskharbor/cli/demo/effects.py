"""A log of what handlers really did: the store is not asked, so it cannot flatter itself."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

What = Literal["begin", "done", "failed", "died"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A handler began, was done or failed; or a process died. Times are of a clock that all processes share."""

    what: What
    pid: int
    at: float
    job: str = ""
    token: str = ""


class EffectLog:
    """Lines that any number of processes append to; one that is killed leaves no half line behind."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, what: What, *, pid: int, job: str = "", token: str = "") -> None:
        effect = Effect(what=what, pid=pid, at=time.monotonic(), job=job, token=token)
        descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, json.dumps(asdict(effect)).encode() + b"\n")
        finally:
            os.close(descriptor)

    def read(self) -> list[Effect]:
        return [Effect(**json.loads(line)) for line in self.file.read_text().splitlines()]
