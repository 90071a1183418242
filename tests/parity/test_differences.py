"""The machine is worth what it finds."""

from __future__ import annotations

from typing import Final

from tests.conformance import test_drivers
from tests.parity.driving import tell_apart
from tests.parity.planting import all_differences, differing

EXAMPLES: Final = 1_000  # it stops once all are found
STEPS: Final = 60


def test_the_machine_finds_each_planted_difference() -> None:
    table = find_all()

    assert [name for name, found in table.items() if found is None] == []
    assert len(table) >= 10


def find_all() -> dict[str, str | None]:
    """Return what the machine tells of each planted difference."""
    others = {each.name: differing(each) for each in all_differences()}
    found = tell_apart(test_drivers.memory, others, examples=EXAMPLES, steps=STEPS)
    return {name: found.get(name) for name in others}
