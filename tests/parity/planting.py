"""Create memory stores that each differ from the memory driver in one detail, without changing files.

The edits are in ``differences.txt``, in the format of `tests.planted.bugs`. The edited modules are loaded under
another package name, beside the original ones, and share the core.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskharbor.drivers import memory
from tests.conformance.test_drivers import memory as memory_subject
from tests.planted.bugs import Bug, read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, ModuleType

    from taskharbor.testing.conformance import Subject

TRUE: Final = memory.__name__
ALIAS: Final = "memory_that_differs"
FOLDER: Final = Path(memory.__path__[0])


def all_differences() -> list[Bug]:
    return list(read(Path(__file__).with_name("differences.txt"), "parity"))


def differing(difference: Bug) -> Callable[[], Subject]:
    """Return a function that creates memory stores with the *difference*."""
    finder = Finder(difference)
    sys.meta_path.insert(0, finder)
    try:
        driver = importlib.import_module(ALIAS).MemoryDriver
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == ALIAS]:
            del sys.modules[name]
    return partial(memory_subject, driver)


class Finder:
    """An import hook that finds the modules of the memory driver under a second name."""

    def __init__(self, difference: Bug) -> None:
        self._difference = difference

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  the signature is Python's
        target: ModuleType | None = None,  # noqa: ARG002  as above
    ) -> ModuleSpec | None:
        package, _, module = fullname.partition(".")
        if package != ALIAS:
            return None
        file = str(FOLDER / f"{module or '__init__'}.py")
        loader = Loader(fullname, file, self._difference if f"{TRUE}.{module}" == self._difference.module else None)
        folders = None if module else [str(FOLDER)]
        return importlib.util.spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=folders)


class Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, difference: Bug | None) -> None:
        super().__init__(fullname, path)
        self._difference = difference

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002  the signature is Python's
        source = Path(self.path).read_text()
        if self._difference is not None:
            source = self._difference.planted_in(source)
        return compile(source.replace(TRUE, ALIAS), self.path, "exec", dont_inherit=True)
