"""The tasks of `benchmarks.isolation`, which child processes import."""

from __future__ import annotations

import os
import signal
from hashlib import sha256
from typing import Final

from taskharbor import Harbor

harbor = Harbor()
ROUNDS: Final = 20_000


@harbor.task(isolate=True)
def noop() -> None:
    """Do nothing."""


@harbor.task(isolate=True)
def loop() -> None:
    """Compute without an end."""
    while True:
        pass


@harbor.task(isolate=True)
def stay() -> None:
    """Fork, ignore SIGTERM, and never end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.fork()
    while True:
        signal.pause()


@harbor.task
def compute(text: str) -> str:
    """Compute in Python for about ten milliseconds."""
    return digest(text)


@harbor.task(isolate=True)
def compute_isolated(text: str) -> str:
    """Do the same in a child process."""
    return digest(text)


def digest(text: str) -> str:
    value = text.encode()
    for _ in range(ROUNDS):
        value = sha256(value).digest()
    return value.hex()
