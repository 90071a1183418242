"""Insert a bug into a module that is imported already, by giving its functions new code.

Importing TaskHarbor and its tests takes longer than most of the tests. A bug that changes only the bodies of
functions can be planted in a fork of a process that has imported them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.planted.bugs import Bug

Change = tuple[CodeType, CodeType]
CALLED_BY_IMPORTS: Final = ("taskharbor.drivers.records",)
"""Modules whose functions are called while others are imported: they make the texts of statements."""
NEED_SETTINGS: Final = ("taskharbor.integrations.django.admin",)
"""Modules that can be imported only after Django was configured, which their tests do."""


def plant_live(bug: Bug) -> None:
    """Insert *bug* into its module, which `can_plant_live` has allowed."""
    for function, code in _new_codes(bug):
        function.__code__ = code


def can_plant_live(bug: Bug) -> bool:
    """Return whether *bug* changes nothing but files, and the bodies of functions that can be found."""
    if bug.module in (*CALLED_BY_IMPORTS, *NEED_SETTINGS):
        return False
    if not bug.module:
        return True
    try:
        return bool(_new_codes(bug))
    except NotLive:
        return False


class NotLive(Exception):
    """The bug changes something other than the body of a function, such as a class or a default value."""


def _new_codes(bug: Bug) -> list[tuple[FunctionType, CodeType]]:
    module = importlib.import_module(bug.module)
    file = str(module.__file__)
    source = Path(file).read_text()
    return [
        (_function(module, before), after)
        for before, after in _changes(_compiled(source, file), _compiled(bug.planted_in(source), file))
    ]


@functools.lru_cache(maxsize=2)
def _compiled(source: str, file: str) -> CodeType:
    return compile(source, file, "exec", dont_inherit=True)


def _changes(old: CodeType, new: CodeType) -> Iterator[Change]:
    """Yield the outermost functions whose code differs."""
    if _shape(old, with_bodies=False) != _shape(new, with_bodies=False):
        raise NotLive
    for before, after in zip(_nested(old), _nested(new), strict=True):
        if _shape(before) != _shape(after):
            if before.co_flags & inspect.CO_OPTIMIZED:
                yield before, after
            else:  # the body of a class
                yield from _changes(before, after)


def _shape(code: CodeType, *, with_bodies: bool = True) -> tuple[Any, ...]:
    """Return everything about *code* but its lines and, unless *with_bodies*, the functions and classes in it."""
    consts = tuple(
        (each.co_qualname, _shape(each) if with_bodies else None)
        if isinstance(each, CodeType)
        else (type(each), repr(each))
        for each in code.co_consts
    )
    return (
        code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags,
        code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_exceptiontable,
    )  # fmt: skip


def _nested(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _function(module: Any, code: CodeType) -> FunctionType:
    """Return the function that was made from *code*."""
    *path, name = code.co_qualname.split(".")
    try:
        found = inspect.getattr_static(functools.reduce(getattr, path, module), name)
    except AttributeError as error:
        raise NotLive from error
    for candidate in _unwrapped(found):
        if isinstance(candidate, FunctionType) and candidate.__code__.co_firstlineno == code.co_firstlineno:
            return candidate
    raise NotLive


def _unwrapped(found: Any) -> Iterator[Any]:
    """Yield *found* and what it wraps: the function of a property, a class method or a decorator."""
    while found is not None:
        yield found
        found = next(
            (inner for name in ("__wrapped__", "__func__", "fget", "func") if (inner := getattr(found, name, None))),
            None,
        )
