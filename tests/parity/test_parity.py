"""Test that every store gives the same answers as the memory driver and keeps the same rows."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from tests.conformance import test_drivers
from tests.parity.driving import drive

if TYPE_CHECKING:
    from taskharbor.testing.conformance import Subject

MAX_EXAMPLES: Final = 100
MAX_STEPS: Final = 50


def test_the_machine_finds_no_difference_between_a_store_and_itself() -> None:
    drive([test_drivers.memory, test_drivers.memory], examples=MAX_EXAMPLES // 5, steps=MAX_STEPS)


def test_sqlite_keeps_the_same_rows_as_memory_and_gives_the_same_answers() -> None:
    run(MAX_EXAMPLES, MAX_STEPS, repeatable=True)


def test_postgres_keeps_the_same_rows_as_memory_and_gives_the_same_answers() -> None:
    drive([test_drivers.memory, test_drivers.postgres], examples=MAX_EXAMPLES // 5, steps=MAX_STEPS, repeatable=True)


def run(examples: int, steps: int, *, repeatable: bool = False) -> None:
    """Compare SQLite with memory, with new random calls each time unless *repeatable*."""
    with TemporaryDirectory() as folder:
        numbers = count()

        def sqlite() -> Subject:
            file = Path(folder) / str(next(numbers))
            file.mkdir()
            return test_drivers.sqlite(file)

        drive([test_drivers.memory, sqlite], examples=examples, steps=steps, repeatable=repeatable)
