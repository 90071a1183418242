"""The contract of a driver, as tests.

Three lines put a driver under it, in any test module of its author's::

    from taskharbor.testing.conformance import *

    @pytest.fixture
    def subject() -> Subject: ...

Every case is a sentence about the world; each asks for the ``subject`` fixture and
for nothing else.
"""

import importlib
import pkgutil

import pytest

_MODULES = [module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")]

# Before any case is imported: a failed assertion then shows its values.
pytest.register_assert_rewrite(*_MODULES)

from taskharbor.testing.conformance.subject import Subject  # noqa: E402  the line above must come first

_CASES = {
    name: case
    for module in _MODULES
    for name, case in vars(importlib.import_module(module)).items()
    if name.startswith("test_")
}
globals().update(_CASES)

__all__ = ["Subject", *_CASES]  # noqa: PLE0604  every case there is
