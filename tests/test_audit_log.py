"""Searches of the audit log."""

from __future__ import annotations

from taskharbor.audit_log import AUDIT_BATCH, MAX_BATCHES, read_audit
from taskharbor.core.ids import new_token
from taskharbor.core.model import AuditEntry
from taskharbor.drivers.memory import MemoryDriver


def record(driver: MemoryDriver, count: int, *, actor: str = "ann", action: str = "jobs.cancel") -> None:
    entries = [AuditEntry(id=new_token(), actor=actor, action=action, target="job 1") for _ in range(count)]
    for entry in entries:
        driver.control.record_audit([entry])


def test_a_search_by_several_conditions_examines_a_bounded_number_of_entries() -> None:
    driver = MemoryDriver()
    record(driver, 2, actor="bob")
    record(driver, AUDIT_BATCH * MAX_BATCHES)

    first = read_audit(driver.inspector, limit=10, actor="bob", target="job 1")
    second = read_audit(driver.inspector, limit=10, actor="bob", target="job 1", before=first.after)

    assert (len(first.entries), first.after is None) == (0, False)
    assert (len(second.entries), second.after) == (2, None)


def test_a_full_page_continues_below_its_last_entry() -> None:
    driver = MemoryDriver()
    record(driver, 5, actor="bob")
    record(driver, 3)

    first = read_audit(driver.inspector, limit=3, actor="bob", action="jobs.cancel")
    second = read_audit(driver.inspector, limit=3, actor="bob", action="jobs.cancel", before=first.after)

    assert (len(first.entries), len(second.entries), second.after) == (3, 2, None)
    assert not {each.id for each in first.entries} & {each.id for each in second.entries}


def test_a_page_with_all_entries_is_the_last_one() -> None:
    driver = MemoryDriver()
    record(driver, 3)

    assert read_audit(driver.inspector, limit=3).after is None
