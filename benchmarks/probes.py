"""How long the probes of a worker take to answer as docs/probes.md says, with default options, beside other work."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

from taskharbor.drivers.postgres.driver import DEADLINE
from tests.cli.test_health import (
    BLOCKED,
    HELD,
    HUNG,
    STARTING,
    STUCK_AFTER_SECONDS,
    TABLE,
    get_stuck,
    hold_the_gil,
    outlast_outages,
    wait_for_the_store,
)

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def figures() -> dict[str, object]:
    took = _in_folder(partial(outlast_outages, deadline=DEADLINE.seconds))
    took[STARTING] = _in_folder(wait_for_the_store)
    took[HELD] = _in_folder(hold_the_gil)
    for situation in (HUNG, BLOCKED):
        took[situation] = _in_folder(partial(get_stuck, situation, stuck_after=STUCK_AFTER_SECONDS))
    return {situation: round(took[situation], 1) for situation in TABLE}


def _in_folder(measure: Callable[[Path], T]) -> T:
    with TemporaryDirectory() as folder:
        return measure(Path(folder))
