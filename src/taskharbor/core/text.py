"""Make text that every store accepts, and check, shorten and format text.

If a failure could not be recorded, its job would stay in PROCESSING. So error texts are made storable
first: no NUL (PostgreSQL refuses it), no lone surrogate (it has no UTF-8 form), and a bounded size.
"""

from __future__ import annotations

from typing import Final

MAX_TEXT_CHARS: Final = 16_384
"""The maximum length of a stored error message or traceback."""

_UNITS: Final = ((172_800, 86_400, "days"), (3_600, 3_600, "h"), (120, 60, "min"), (0, 1, "s"))
"""The units of a duration: from how many seconds on each is used, and how many seconds it has."""
_DECIMAL_BELOW: Final = 10
"""Smaller numbers are shown with one decimal."""
_SHORT_TEXTS: Final = tuple(f"{tenths / 10:.1f}".removesuffix(".0") + " ms" for tenths in range(100))
"""The texts of 0 to 9.9 ms, for the log lines of short attempts: to format one takes six times as long."""
_SHORT_SECONDS: Final = 0.0099
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


def one_line(text: str, *, limit: int | None = None) -> str:
    r"""Return *text* on one line: cut to *limit*, with line breaks and control characters escaped.

    >>> one_line("GET /a\n2030-01-01 INFO all is well \x1b[2J", limit=60)
    'GET /a\\n2030-01-01 INFO all is well \\x1b[2J'
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:limit])[:limit]


def escape_lines(text: str) -> str:
    r"""Return *text* for the log, with indented lines and without control characters: none can be taken for a record.

    >>> escape_lines("boom\n2030-01-01 INFO all is well \x1b[2J\n")
    '  boom\n  2030-01-01 INFO all is well \\x1b[2J'
    """
    return "\n".join(f"  {one_line(line, limit=MAX_TEXT_CHARS)}" for line in text.splitlines())


def duration_text(seconds: float) -> str:
    """Return a duration for log lines and messages, in one unit.

    >>> [duration_text(seconds) for seconds in (0, 0.0004, 0.25, 1, 2.34, 25, 90, 900, 3600, 604_800)]
    ['0 ms', '0.4 ms', '250 ms', '1 s', '2.3 s', '25 s', '90 s', '15 min', '1 h', '7 days']
    """
    if 0 <= seconds < _SHORT_SECONDS:
        return _SHORT_TEXTS[round(seconds * 10_000)]
    count, unit = seconds * 1_000, "ms"
    if seconds >= 1:
        size, unit = next((size, unit) for start, size, unit in _UNITS if seconds >= start)
        count = seconds / size
    return f"{count:.1f}".removesuffix(".0") + f" {unit}" if count < _DECIMAL_BELOW else f"{count:.0f} {unit}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return *count* and the noun that agrees with it.

    >>> plural(1, "job"), plural(19, "job")
    ('1 job', '19 jobs')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


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
