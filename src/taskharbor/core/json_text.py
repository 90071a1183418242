"""Read values of types that JSON lacks from the text that stands for them in JSON, such as a datetime in ISO 8601."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from taskharbor.core.conversion import TypeMismatch, type_name
from taskharbor.core.tagged_json import SCALARS, NotRepresentable

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMS: Final[Mapping[type[Any], str]] = {
    datetime: 'a time in ISO 8601, such as "2030-01-01T12:00:00Z"',
    date: 'a date in ISO 8601, such as "2030-01-01"',
    UUID: 'a UUID, such as "01890a5d-ac96-774b-bcce-b302099a8057"',
    Decimal: 'a decimal number in a string, such as "12.50"',
    bytes: 'bytes in base64, such as "aGVsbG8="',
}
"""How the values of each type are written in JSON."""
_READERS: Final = {kind: (tag, read) for tag, (kind, _, read) in SCALARS.items()}


def read_text(kind: type[Any], value: Any, path: str) -> Any:
    """Return the value of type *kind* that *value*, a part of a JSON document, stands for.

    It is a string, or the tagged form in which stored payloads are shown. A Decimal may be an integer, but not a number
    with a fraction: that was read as a float, and may have been rounded.
    """
    tag, read = _READERS[kind]
    text = value[tag] if isinstance(value, dict) and value.keys() == {tag} else value
    if kind is Decimal and type(text) is int:
        text = str(text)
    try:
        if isinstance(text, str):
            return read(text)
    except (ValueError, ArithmeticError, NotRepresentable):  # the second from Decimal
        raise TypeMismatch(path, f"must be {FORMS[kind]}") from None
    raise TypeMismatch(path, f"must be {FORMS[kind]}, not {type_name(type(value))}")
