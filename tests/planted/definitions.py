"""Find a class, function or constant of TaskHarbor by its qualified name, in any module."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SOURCE: Final = Path(__file__).resolve().parents[2] / "src"


@dataclass(frozen=True, slots=True)
class Definition:
    name: str
    module: str
    start: int
    end: int
    text: str


@cache
def by_name() -> Mapping[str, Sequence[Definition]]:
    found: defaultdict[str, list[Definition]] = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        for each in definitions_in(file):
            found[each.name].append(each)
    return found


def find(name: str, text: str) -> Definition:
    """Return the only definition of this *name* that contains *text* once. Raise `LookupError` otherwise."""
    found = [each for each in by_name().get(name, ()) if each.text.count(text) == 1]
    if len(found) != 1:
        raise LookupError(f"{text!r} is in {len(found)} of {len(by_name().get(name, ()))} definitions of {name!r}")
    return found[0]


def definitions_in(file: Path) -> Iterator[Definition]:
    source = file.read_text("utf-8")
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for name, first, last in _named(ast.parse(source), "", is_scope=True):
        start, end = starts[first - 1], starts[last]
        yield Definition(name, module_of(file), start, end, source[start:end])


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def _named(node: ast.AST, prefix: str, *, is_scope: bool) -> Iterator[tuple[str, int, int]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                yield prefix + child.name, first, child.end_lineno or first
                yield from _named(child, f"{prefix}{child.name}.", is_scope=isinstance(child, ast.ClassDef))
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if is_scope:
                yield prefix + name, child.lineno, child.end_lineno or child.lineno
            case ast.stmt():
                yield from _named(child, prefix, is_scope=is_scope)
