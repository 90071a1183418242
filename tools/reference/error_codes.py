"""The exceptions, and the exit codes and stable codes that belong to them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import taskharbor
from taskharbor.api.problems import ERROR_STATUSES
from taskharbor.cli.errors import ERROR_EXITS
from taskharbor.cli.main import ExitCode
from taskharbor.core import errors as all_errors
from taskharbor.core.errors import TaskHarborError
from tools.reference.markdown import code, first_sentence, table

if TYPE_CHECKING:
    from collections.abc import Iterator


def errors() -> str:
    return table(["exception", "is a", "", "exit code", "code of the command line", "HTTP"], _rows())


def _rows() -> Iterator[tuple[str, ...]]:
    for kind in _tree(TaskHarborError):
        exits = ERROR_EXITS[next(each for each in kind.__mro__ if each in ERROR_EXITS)]
        status = ERROR_STATUSES[next(each for each in kind.__mro__ if each in ERROR_STATUSES)]
        yield (
            code(_name(kind)),
            code(_name(kind.__bases__[0])) if kind is not TaskHarborError else "",
            first_sentence(kind.__doc__),
            str(int(exits.exit)),
            code(exits.code),
            f"{status.status.value} {code(status.code)}",
        )


def _tree(kind: type[TaskHarborError]) -> Iterator[type[TaskHarborError]]:
    """Yield *kind* and the exceptions below it that users meet: those of the core, and exported ones."""
    yield kind
    for each in sorted(kind.__subclasses__(), key=lambda below: below.__name__):
        if each.__module__ == all_errors.__name__ or each.__name__ in taskharbor.__all__:
            yield from _tree(each)


def _name(kind: type) -> str:
    return kind.__name__


def exit_codes() -> str:
    codes: defaultdict[ExitCode, list[str]] = defaultdict(list)
    for each in ERROR_EXITS.values():
        if each.code not in codes[each.exit]:
            codes[each.exit].append(each.code)
    rows = [
        (str(int(each)), each.name.lower().replace("_", " "), ", ".join(map(code, sorted(codes[each]))))
        for each in ExitCode
    ]
    return table(["exit code", "name", "codes of errors, with `--json`"], rows)
