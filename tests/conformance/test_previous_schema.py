"""The contract, held on PostgreSQL by a database that has yet to be given the newest migration.

Code is deployed before its migration. Only what that migration brings may be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.testing.conformance import *
from taskharbor.testing.conformance import Subject, settings
from tests.conformance.test_drivers import postgres
from tests.postgres import PREVIOUS, emptied_at

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDS_NEWEST: Final = sorted(name for name in vars(settings) if name.startswith("test_"))
"""Cases about what the newest migration brings. Name each here, or the whole module as above."""
for _name in NEEDS_NEWEST:
    del globals()[_name]  # a KeyError: there is no such case


@pytest.fixture
def subject() -> Iterator[Subject]:
    made = postgres(emptied_at(PREVIOUS))
    yield made
    made.driver.close()
