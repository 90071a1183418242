"""An audit of a whole store, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.audit import Position, audit_store

if TYPE_CHECKING:
    from taskharbor.core.audit import Violation
    from taskharbor.drivers.base import Driver
    from taskharbor.drivers.operator import Auditor


def audit(driver: Driver, *, page_rows: int | None = None) -> list[Violation]:
    """Return what an audit of the store finds."""
    auditor: Auditor = driver.auditor  # type: ignore[attr-defined]  # of SQLite and PostgreSQL
    return [each for page, _ in audit_store(auditor, Position(), page_rows=page_rows) for each in page.violations]
