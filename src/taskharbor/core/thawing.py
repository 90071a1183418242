"""Values that cannot be changed, made as quickly as those that can."""

from __future__ import annotations

from dataclasses import fields, make_dataclass
from typing import Any


def thawed(frozen: type[Any]) -> Any:
    """Return a class whose objects become instances of *frozen* by a change of their class.

    A frozen class sets each of its fields by a call: 5 µs for a job, a tenth of its whole way through
    SQLite. So they are set on a twin of the same slots that is not frozen: 0.5 µs.
    """
    return make_dataclass(f"Thawed{frozen.__name__}", [each.name for each in fields(frozen)], slots=True)
