"""The pytest plugin: a fixture that puts your harbor under test.

Name the harbor in your settings of pytest, or return it from a fixture ``harbor_under_test`` of yours::

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
    parser.addini(OPTION, "The harbor that the fixture 'harness' puts under test, as module:attribute.")


@pytest.fixture
def harbor_under_test(request: pytest.FixtureRequest) -> Harbor:
    """Return the harbor that the settings of pytest name; a test suite may have its own fixture of this name."""
    # Here, and not above: pytest loads its plugins whether they are used or not.
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
    """Put the harbor under test: a store in memory, a clock that you move, and nothing runs by itself."""
    with harbor_under_test.testing() as made:
        yield made
