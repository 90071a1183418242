"""Run the state machine on stores, to find a difference, or to check that each planted difference is found."""

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


class StoresDiffer(AssertionError):
    """Two stores do not agree."""


class AllStoresDiffer(Exception):
    """A difference was found between the reference and each other store."""


def drive(makers: Sequence[Maker], *, examples: int, steps: int, repeatable: bool = True) -> None:
    """Run the machine on the stores of *makers*, and raise `StoresDiffer` with the shortest failing run.

    *repeatable* runs use the same calls each time; others use new random calls.
    """

    def fail(_: int, difference: str) -> None:
        raise StoresDiffer(difference)

    class Driven(Parity):
        def __init__(self) -> None:
            super().__init__([make() for make in makers], on_difference=fail)

    run_state_machine_as_test(Driven, settings=_settings(examples, steps, derandomize=repeatable))


def first_differences(reference: Maker, others: Mapping[str, Maker], *, examples: int, steps: int) -> dict[str, str]:
    """Return the first difference found between the *reference* and each of the *others*, if any.

    All stores run together; each one is removed after its first difference.
    """
    found: dict[str, str] = {}

    class Driven(Parity):
        def __init__(self) -> None:
            left = {name: make for name, make in others.items() if name not in found}

            def record(n: int, difference: str) -> None:
                found.setdefault([*left][n - 1], difference)
                if len(found) == len(others):
                    raise AllStoresDiffer

            super().__init__([reference(), *[make() for make in left.values()]], on_difference=record)

    # Hypothesis repeats the last example. No store is left by then, so the error does not recur: Flaky.
    with suppress(AllStoresDiffer, Flaky):
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
