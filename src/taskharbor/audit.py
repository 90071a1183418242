"""Runs an audit of a store, page by page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from taskharbor.core.audit import AuditPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from taskharbor.core.audit import AuditPage
    from taskharbor.core.ids import JobId
    from taskharbor.drivers.operator import Auditor

PAGE_ROWS: Final = 2_000
"""A page is one short statement, so that an audit never holds back vacuum or other readers."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in an audit: everything before it was checked."""

    part: AuditPart = AuditPart.JOBS
    after: JobId | None = None

    def __str__(self) -> str:
        return self.part.value if self.after is None else f"{self.part.value}:{self.after}"

    def next(self, page: AuditPage) -> Self | None:
        """Return the position after *page*, or None at the end."""
        if page.after is not None:
            return type(self)(self.part, page.after)
        parts: Sequence[AuditPart] = list(AuditPart)
        index = parts.index(self.part) + 1
        return type(self)(parts[index]) if index < len(parts) else None


def audit_store(
    auditor: Auditor, start: Position, *, page_rows: int | None = None
) -> Iterator[tuple[AuditPage, Position | None]]:
    """Yield each page from *start* on, with the position after it; None after the last one."""
    position: Position | None = start
    while position is not None:
        page = auditor.audit(position.part, limit=page_rows or PAGE_ROWS, after=position.after)
        position = position.next(page)
        yield page, position
