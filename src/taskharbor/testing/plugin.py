"""The pytest plugin: a ``harness`` fixture that runs your harbor's tasks in memory.

Name the harbor in the pytest settings, or override the ``harbor_under_test`` fixture to return it::

    [tool.pytest.ini_options]
    taskharbor_harbor = "shop.tasks:harbor"
"""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.harbor import Harbor
    from taskharbor.testing.harness import Harness

OPTION: Final = "taskharbor_harbor"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(OPTION, "The harbor used by the 'harness' fixture, as module:attribute.")


@pytest.fixture
def harbor_under_test(request: pytest.FixtureRequest) -> Harbor:
    """Return the harbor named in the pytest settings. Test suites may override this fixture."""
    # Imported here because pytest loads every installed plugin, used or not.
    from taskharbor.core.errors import Problem, UsageError  # noqa: PLC0415
    from taskharbor.harbor import Harbor  # noqa: PLC0415

    named = str(request.config.getini(OPTION))
    module, colon, attribute = named.partition(":")
    if not colon:
        rule = f'set {OPTION} = "shop.tasks:harbor" for pytest, or define the fixture harbor_under_test'
        raise UsageError(Problem(field=OPTION, value=repr(named), rule=rule))
    found: object = reduce(getattr, attribute.split("."), import_module(module))
    if not isinstance(found, Harbor):
        raise UsageError(Problem(field=OPTION, value=repr(named), rule=f"it is a {type(found).__name__}, not a Harbor"))
    return found


@pytest.fixture
def harness(harbor_under_test: Harbor) -> Iterator[Harness]:
    """Return a harness for the harbor: an in-memory store and a manual clock; jobs run only in `drain`."""
    with harbor_under_test.testing() as opened:
        yield opened
