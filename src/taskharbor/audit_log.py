"""The audit log for operators: entries by target, actor and action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from taskharbor.views import iso_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.ids import Token
    from taskharbor.core.model import AuditEntry
    from taskharbor.drivers.base import Inspector
    from taskharbor.views import View

AUDIT_BATCH: Final = 200
MAX_BATCHES: Final = 10
"""How many batches are searched for entries that match several conditions; the next page continues there."""


@dataclass(frozen=True, slots=True)
class AuditLogPage:
    """Audit entries, newest first, and the entry below which the next page begins; None if there are no more."""

    entries: Sequence[AuditEntry]
    after: Token | None

    def view(self) -> View:
        """Return the JSON form."""
        return {"entries": [entry_view(each) for each in self.entries], "next": self.after and str(self.after)}


def read_audit(
    inspector: Inspector,
    *,
    limit: int,
    before: Token | None = None,
    target: str | None = None,
    actor: str | None = None,
    action: str | None = None,
) -> AuditLogPage:
    """Return up to *limit* entries that match all conditions, below the entry *before*.

    The store selects by the first condition; the others are checked here, on at most 2,000 entries. So a page may be
    short although there are more entries.
    """
    conditions: dict[str, Any] = {"target": target, "actor": actor, "action": action}
    first, *others = [(name, value) for name, value in conditions.items() if value is not None] or [("target", None)]
    found: list[AuditEntry] = []
    size = AUDIT_BATCH if others else limit + 1
    for _ in range(MAX_BATCHES if others else 1):
        batch = inspector.audit(limit=size, before=before, **dict([first]))
        found += [each for each in batch if all(getattr(each, name) == value for name, value in others)]
        if len(found) > limit:
            return AuditLogPage(found[:limit], found[limit - 1].id)
        if len(batch) < size:
            return AuditLogPage(found, None)
        before = batch[-1].id
    return AuditLogPage(found, before)


def entry_view(entry: AuditEntry) -> View:
    return {
        "id": str(entry.id),
        "at": iso_time(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "target": entry.target,
        "detail": dict(entry.detail),
    }
