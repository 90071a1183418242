"""The driver conformance kit: the contract of a driver as pytest cases.

To run it against a driver, put this into a test module::

    from taskharbor.testing.conformance import *

    @pytest.fixture
    def subject() -> Subject: ...

Each case states one property of the contract and uses only the ``subject`` fixture.
"""

import importlib
import pkgutil

import pytest

_MODULES = [module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")]

# Register before the modules are imported, so that a failed assertion shows its values.
pytest.register_assert_rewrite(*_MODULES)

from taskharbor.testing.conformance.subject import Subject  # noqa: E402  the line above must come first

_CASES = {
    name: case
    for module in _MODULES
    for name, case in vars(importlib.import_module(module)).items()
    if name.startswith("test_")
}
globals().update(_CASES)

__all__ = ["Subject", *_CASES]  # noqa: PLE0604  all cases
