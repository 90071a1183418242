"""Sizes of memory as people write them: 512MB."""

from __future__ import annotations

import re
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIZE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([KMG])i?B", re.ASCII | re.IGNORECASE)
_UNITS: Final[Mapping[str, int]] = MappingProxyType({"K": 1 << 10, "M": 1 << 20, "G": 1 << 30})


def as_size(value: int | str, field: str) -> int:
    """Return a size in bytes: a positive number of bytes, or a text as `parse_size` reads it. Raise `UsageError`."""
    try:
        size = parse_size(value) if isinstance(value, str) else index(value)
    except (TypeError, ValueError) as error:
        raise UsageError(Problem(field=field, value=repr(value), rule=str(error))) from None
    if size < 1:
        raise UsageError(Problem(field=field, value=repr(value), rule="must be at least 1 byte"))
    return size


def parse_size(text: str) -> int:
    """Parse a size with its unit, and return bytes. Raise `ValueError` with the rule if it is none.

    >>> parse_size("512MB"), parse_size("1.5GiB")
    (536870912, 1610612736)
    """
    parts = _SIZE.fullmatch(text.strip())
    if parts is None or not float(parts[1]):
        rule = "write a size with its unit, such as 512MB or 1.5GB"
        raise ValueError(rule)
    return int(float(parts[1]) * _UNITS[parts[2].upper()])
