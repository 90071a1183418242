"""What a person did by the command line, written down in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.cli.operating import current_actor
from taskharbor.cli.output import echo_status

if TYPE_CHECKING:
    from taskharbor.drivers.base import Driver


def record_audit(driver: Driver, action: str, target: str, **detail: str) -> None:
    """Leave a row that says who did what, and to what. Where that cannot be, say so: what was done, is done."""
    from taskharbor.core.errors import StoreUnavailable
    from taskharbor.core.ids import new_token
    from taskharbor.core.model import AuditEntry

    entry = AuditEntry(id=new_token(), actor=current_actor(), action=action, target=target, detail=detail)
    try:
        driver.control.record_audit([entry])
    except StoreUnavailable as error:
        echo_status(f"it is done, but not written down: {error}")
