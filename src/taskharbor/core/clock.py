"""Where a moment comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime


class Clock(Protocol):
    """Tells the time: an aware UTC datetime."""

    def now(self) -> datetime: ...
