"""Make text that every store accepts, and check and shorten text.

If a failure could not be recorded, its job would stay in PROCESSING. So error texts are made storable
first: no NUL (PostgreSQL refuses it), no lone surrogate (it has no UTF-8 form), and a bounded size.
"""

from __future__ import annotations

from typing import Final

MAX_TEXT_CHARS: Final = 16_384
"""The maximum length of a stored error message or traceback."""

_NOTE: Final = "… {:,} characters left out …"


def make_storable(text: str, *, limit: int = MAX_TEXT_CHARS) -> str:
    r"""Return *text* in a form that every store accepts, cut in the middle to at most *limit* characters.

    >>> make_storable("a\x00b")
    'a\\x00b'
    >>> make_storable("x" * 100, limit=40)
    'xxxxxxx… 87 characters left out ……xxxxxx'
    """
    # Cut before escaping to avoid copying a huge text, and again after it because escapes are longer.
    clean = _cut(text, limit).replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
    return _cut(clean, limit)


def one_line(text: str, *, limit: int) -> str:
    r"""Return *text* for one log line: cut to *limit*, with line breaks and control characters escaped.

    >>> one_line("GET /a\n2030-01-01 INFO all is well \x1b[2J", limit=60)
    'GET /a\\n2030-01-01 INFO all is well \\x1b[2J'
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:limit])[:limit]


def is_storable(text: str) -> bool:
    """Return whether every store keeps *text* unchanged."""
    return "\x00" not in text and (text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text))


def exact_str(text: str) -> str:
    """Return *text* as an exact str: of a str enum member, its value."""
    return text if type(text) is str else str.__str__(text)


def _cut(text: str, limit: int) -> str:
    """Keep the head and the tail: the last lines of a traceback matter most."""
    if len(text) <= limit:
        return text
    note_width = len(_NOTE.format(len(text)))  # the number left out has at most as many digits as the length
    kept = max(limit - note_width, 0)
    note = _NOTE.format(len(text) - kept).ljust(note_width, "…")
    head, tail = (kept + 1) // 2, kept // 2
    return (text[:head] + note + (text[-tail:] if tail else ""))[:limit]
