"""The machine is worth what it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.conformance import test_drivers
from tests.parity.machine import tells_apart
from tests.parity.planting import all_differences, differing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.testing.conformance import Subject
    from tests.planted.bugs import Bug

EXAMPLES: Final = 2_000  # where one is found, the search stops; the slowest takes a few hundred
STEPS: Final = 30
DIFFERENCES: Final = all_differences()


@pytest.mark.parametrize("difference", DIFFERENCES, ids=[each.name for each in DIFFERENCES])
def test_the_machine_finds_a_planted_difference(difference: Bug) -> None:
    with differing(difference) as other:
        assert find([test_drivers.memory, other])


def test_at_least_ten_differences_are_planted() -> None:
    assert len(DIFFERENCES) >= 10


def find(makers: Sequence[Callable[[], Subject]]) -> str | None:
    return tells_apart(makers, examples=EXAMPLES, steps=STEPS)
