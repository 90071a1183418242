"""Let two threads be at the same place of a planted bug at the same time, however busy the machine is."""

from __future__ import annotations

import threading
from typing import Final

MAX_SECONDS: Final = 3.0

_arrival: Final = threading.Condition()
_waiting: list[int] = []


def meet() -> None:
    """Wait until another thread calls this, too. The main thread, which prepares the race, does not wait."""
    if threading.current_thread() is threading.main_thread():
        return
    me = threading.get_ident()
    with _arrival:
        if _waiting:
            _waiting.clear()
            _arrival.notify_all()
            return
        _waiting.append(me)
        if not _arrival.wait_for(lambda: me not in _waiting, MAX_SECONDS):
            _waiting.clear()
