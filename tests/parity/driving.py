"""Lets the machine loose on stores: to find a difference, or to see that each of many is found."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from tests.parity.machine import Parity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskharbor.testing.conformance import Subject

    Maker = Callable[[], Subject]


class Differ(AssertionError):
    """Two stores do not agree."""


class EveryoneDiffers(Exception):
    """Each store was told apart from the reference."""


def drive(makers: Sequence[Maker], *, examples: int, steps: int, repeatable: bool = True) -> None:
    """Let the machine loose on what *makers* make; raise `Differ` with the shortest run it found.

    *repeatable* runs are the same each time; others look somewhere else each time.
    """

    def differ(_: int, difference: str) -> None:
        raise Differ(difference)

    class Driven(Parity):
        def __init__(self) -> None:
            super().__init__([make() for make in makers], on_difference=differ)

    run_state_machine_as_test(Driven, settings=_settings(examples, steps, derandomize=repeatable))


def tell_apart(reference: Maker, others: Mapping[str, Maker], *, examples: int, steps: int) -> dict[str, str]:
    """Return for each of the *others* the first difference found between it and the *reference*, if any was.

    All of them are driven at once, and each leaves when it was told apart.
    """
    found: dict[str, str] = {}

    class Driven(Parity):
        def __init__(self) -> None:
            left = {name: make for name, make in others.items() if name not in found}

            def note(n: int, difference: str) -> None:
                found.setdefault([*left][n - 1], difference)
                if len(found) == len(others):
                    raise EveryoneDiffers

            super().__init__([reference(), *[make() for make in left.values()]], on_difference=note)

    # Hypothesis runs the last one once more, where everyone has been told apart already, and wonders.
    with suppress(EveryoneDiffers, Flaky):
        run_state_machine_as_test(
            Driven,
            settings=_settings(examples, steps, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False),
        )
    return found


def _settings(examples: int, steps: int, **choices: Any) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        **choices,
    )
