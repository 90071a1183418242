"""The number of Python frames of one enqueue: each costs time, and each must be read to follow it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from taskharbor import Harbor

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

MAX_FRAMES = 25


def test_an_enqueue_on_sqlite_takes_at_most_25_frames(tmp_path: Path) -> None:
    harbor, counts = Harbor(f"sqlite:///{tmp_path}/jobs.db"), list[list[str]]()

    @harbor.task
    def greet(name: str) -> str:
        return name

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            counts[-1].append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    with harbor:
        for _ in range(2):
            greet.enqueue("Ada")  # the first calls open the store, check the codec and read entropy
        for _ in range(3):
            counts.append([])
            sys.setprofile(count)
            try:
                greet.enqueue("Ada")
            finally:
                sys.setprofile(None)

    # The fewest: one enqueue of 64 reads entropy, and a collection of garbage may run finalizers of other tests.
    frames = min(counts, key=len)
    assert len(frames) <= MAX_FRAMES, "\n".join(frames)
