"""Text that every store accepts.

A failure that cannot be recorded would leave its job running for ever in the
books, so whatever a handler raises is made storable first: no NUL (PostgreSQL
refuses it), no lone surrogate (it has no UTF-8 form), and a bounded size.
"""

from __future__ import annotations

from typing import Final

MAX_TEXT_CHARS: Final = 16_384
"""The most characters kept of an error's message or traceback."""

_NOTE: Final = "… {:,} characters left out …"


def make_storable(text: str, *, limit: int = MAX_TEXT_CHARS) -> str:
    r"""Return *text* as every store can keep it, cut in the middle to at most *limit* characters.

    >>> make_storable("a\x00b")
    'a\\x00b'
    >>> make_storable("x" * 100, limit=40)
    'xxxxxxx… 87 characters left out ……xxxxxx'
    """
    # Cut first, so that a gigabyte is not copied to keep a page; and once more,
    # because an escape is longer than what it stands for.
    clean = _cut(text, limit).replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
    return _cut(clean, limit)


def one_line(text: str, *, limit: int) -> str:
    r"""Return *text* fit for a line of a log: what would end the line or steer a terminal is escaped, and it is cut.

    >>> one_line("GET /a\n2030-01-01 INFO all is well \x1b[2J", limit=60)
    'GET /a\\n2030-01-01 INFO all is well \\x1b[2J'
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:limit])[:limit]


def is_storable(text: str) -> bool:
    """Tell whether every store keeps *text* exactly as it is."""
    return "\x00" not in text and (text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text))


def exact_str(text: str) -> str:
    """Return *text* as a str and nothing more: of an enum member, say, its value."""
    return text if type(text) is str else str.__str__(text)


def _cut(text: str, limit: int) -> str:
    """Keep the head and the tail: a traceback's last lines say most."""
    if len(text) <= limit:
        return text
    widest = len(_NOTE.format(len(text)))  # the number left out has at most as many digits as the whole
    room = max(limit - widest, 0)
    note = _NOTE.format(len(text) - room).ljust(widest, "…")
    head, tail = (room + 1) // 2, room // 2
    return (text[:head] + note + (text[-tail:] if tail else ""))[:limit]
