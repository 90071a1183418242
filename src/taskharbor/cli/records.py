"""What a person did by the command line, written down in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.cli.operating import me
from taskharbor.cli.output import say

if TYPE_CHECKING:
    from taskharbor.drivers.base import Driver


def record(driver: Driver, action: str, target: str, **detail: str) -> None:
    """Leave a row that says who did what, and to what. Where that cannot be, say so: what was done, is done."""
    from taskharbor.core.errors import StoreUnavailable
    from taskharbor.core.ids import new_token
    from taskharbor.core.model import AuditEntry

    entry = AuditEntry(id=new_token(), actor=me(), action=action, target=target, detail=detail)
    try:
        driver.control.record([entry])
    except StoreUnavailable as error:
        say(f"it is done, but not written down: {error}")
