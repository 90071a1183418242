"""Test that the state machine finds planted differences between stores."""

from __future__ import annotations

from typing import Final

from tests.conformance import test_drivers
from tests.parity.driving import first_differences
from tests.parity.planting import all_differences, differing

MAX_EXAMPLES: Final = 1_000  # it stops once all are found
MAX_STEPS: Final = 60


def test_the_machine_finds_each_planted_difference() -> None:
    table = find_all()

    assert [name for name, found in table.items() if found is None] == []
    assert len(table) >= 10


def find_all() -> dict[str, str | None]:
    """Return what the machine found for each planted difference."""
    others = {each.name: differing(each) for each in all_differences()}
    found = first_differences(test_drivers.memory, others, examples=MAX_EXAMPLES, steps=MAX_STEPS)
    return {name: found.get(name) for name in others}
