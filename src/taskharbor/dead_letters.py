"""Bulk requeue of dead letters at a limited rate."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from taskharbor.drivers.base import STORE_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")


def paced_batches(items: Sequence[T], rate: float | None) -> Iterator[tuple[Sequence[T], timedelta]]:
    """Yield *items* in batches, each with a delay, so that *rate* items become due per second.

    >>> [(len(batch), delay.seconds) for batch, delay in paced_batches(range(25), 10)]
    [(10, 0), (10, 1), (5, 2)]
    """
    size = STORE_BATCH if rate is None else max(1, min(STORE_BATCH, int(rate)))
    for start in range(0, len(items), size):
        yield items[start : start + size], timedelta(seconds=0 if rate is None else start / rate)
