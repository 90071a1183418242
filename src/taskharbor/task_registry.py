"""The tasks of a harbor by type, where each is defined, the modules that define them, and the decorator's types."""

from __future__ import annotations

import inspect
import sys
import threading
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, ParamSpec, Protocol, TypeVar, get_args, overload

from taskharbor.core.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from types import CodeType, ModuleType

    from taskharbor.tasks import Task
    from taskharbor.worker.context import Context

P = ParamSpec("P")
R = TypeVar("R")
Names = Literal["function", "qualified"]
"""The default type of a task: the name of its function, or its dotted name with the module."""


class DuplicateTask(UsageError):
    """Two tasks of a harbor have the same type."""

    def __init__(self, type: str, first: str, second: str, fix: str) -> None:
        super().__init__(type, first, second, fix)
        self.type, self.first, self.second, self.fix = type, first, second, fix

    def __str__(self) -> str:
        return (
            f"two tasks have the type {self.type!r}: {self.first} and {self.second}; "
            f"jobs are stored with the type, so it must be unique: {self.fix}"
        )


class TaskRegistry:
    """The tasks of a harbor. Included modules are imported when the tasks are first needed."""

    def __init__(self, names: Names) -> None:
        if names not in get_args(Names):
            rule = f"must be one of {', '.join(map(repr, get_args(Names)))}"
            raise UsageError(Problem(field="names", value=repr(names), rule=rule))
        self._names = names
        self._tasks: dict[str, Task[..., Any, Any]] = {}
        self._definitions: dict[str, _Definition] = {}
        self._included: dict[str, str] = {}
        self._lock = threading.RLock()
        self._is_loading = False

    def default_type(self, function: Any) -> str:
        """Return the type of a task that sets none."""
        if self._names == "function":
            return str(function.__name__)
        return f"{_module_name(function)}.{function.__qualname__.replace('.<locals>', '')}"

    def add(self, task: Task[..., Any, Any], function: Any) -> None:
        """Add a task, or replace it if its module is executed again. Raise `DuplicateTask` if its type is in use."""
        definition = _definition(function)
        for each in task.types:
            other = next((other for other in self._tasks.values() if each in other.types), None)
            first = None if other is None else self._definitions[other.type]
            if first is not None and not definition.replaces(first):
                raise DuplicateTask(each, str(first), str(definition), self._fix(first, definition))
        self._tasks[task.type] = task
        self._definitions[task.type] = definition

    def _fix(self, first: _Definition, second: _Definition) -> str:
        named = f"{second.module.rpartition('.')[2]}.{second.qualname.rpartition('.')[2]}"
        fixes = ["rename one of them", f"set another type, as in @harbor.task(type={named!r})"]
        if self._names == "function" and first.module != second.module:
            fixes.append("use Harbor(names='qualified')")
        return f"{', '.join(fixes[:-1])}, or {fixes[-1]}"

    def include(self, modules: tuple[str, ...], place: str) -> None:
        """Import *modules* when the tasks are needed. *place* is where the user includes them."""
        for module in modules:
            if not _is_module_name(module):
                rule = "must be the dotted name of a module, such as 'shop.mail'"
                raise UsageError(Problem(field="include", value=repr(module), rule=rule))
            self._included.setdefault(module, place)

    def load(self) -> Mapping[str, Task[..., Any, Any]]:
        """Import the included modules, and return all tasks by type. After an error, the next call tries again."""
        if self._included:
            with self._lock:
                self._import_included()
        return dict(self._tasks)

    def check(self, stores: Callable[[type], bool]) -> None:
        """Raise `UsageError` if a task cannot be stored, or if a name in its annotations is still not defined."""
        for type, task in self.load().items():
            try:
                task.arguments.check(stores)
            except UsageError as error:
                error.add_note(f"in task {self._definitions[type]}")
                raise

    def _import_included(self) -> None:
        if self._is_loading:
            return  # called by a module that is being imported
        self._is_loading = True
        try:
            while self._included:
                module, place = next(iter(self._included.items()))
                _import(module, place)
                del self._included[module]
        finally:
            self._is_loading = False


class TaskDecorator(Protocol):
    """The decorator that `Harbor.task` returns if it is called with options."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> Task[P, R, Callable[Concatenate[Context, P], R]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, Callable[P, R]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Definition:
    """Where a task is defined. *run* is the code that was executing it: another object each time a module runs."""

    module: str
    qualname: str
    file: str
    line: int
    run: CodeType | None

    def __str__(self) -> str:
        return f"{self.qualname} at {place(self.file, self.line)}"

    def replaces(self, other: _Definition) -> bool:
        """Return whether this is the same function, defined again: by a reload, a notebook, or as ``__main__``."""
        is_same_file = self.file == other.file or self.module == other.module
        is_same_place = self.file == other.file and self.line == other.line
        return is_same_file and self.qualname == other.qualname and (is_same_place or self.run is not other.run)


def _definition(function: Any) -> _Definition:
    inner = inspect.unwrap(function)
    code, names = getattr(inner, "__code__", None), getattr(inner, "__globals__", None)
    frame, run = inspect.currentframe(), None
    while frame is not None:
        run = frame.f_code if frame.f_globals is names else run
        frame = frame.f_back
    return _Definition(
        module=str(function.__module__),
        qualname=str(function.__qualname__),
        file=code.co_filename if code else f"<{function.__module__}>",
        line=code.co_firstlineno if code else 0,
        run=run,
    )


def place(file: str, line: int) -> str:
    """Return a place in the source code as ``file:line``, relative to the current folder if the file is in it."""
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"


def name_of_app(harbor: object) -> str | None:
    """Return the name that another process can import *harbor* by, as on the command line; None if there is none."""
    for name, module in sorted(sys.modules.items(), key=lambda item: item[0] == "__main__"):
        for attribute, value in [*getattr(module, "__dict__", {}).items()]:  # some programs put other objects there
            if value is harbor and not attribute.startswith("__"):
                return f"{_importable(name, module)}:{attribute}"
    return None


def _importable(name: str, module: ModuleType) -> str:
    if name != "__main__":
        return name
    spec, file = module.__spec__, module.__file__
    return spec.name if spec is not None else str(file)


def caller_place() -> str:
    """Return the place from which user code has called a method of the harbor."""
    frame = sys._getframe(2)  # noqa: SLF001  of the caller of the caller
    return place(frame.f_code.co_filename, frame.f_lineno)


def _is_module_name(value: object) -> bool:
    return isinstance(value, str) and all(part.isidentifier() for part in value.split("."))


def _import(module: str, place: str) -> None:
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            error.add_note(_included_by(module, place))
            raise
        rule = f"there is no module {error.name!r}; correct harbor.include(…) at {place}"
        raise UsageError(Problem(field="include", value=repr(module), rule=rule)) from error
    except Exception as error:
        error.add_note(_included_by(module, place))
        raise


def _included_by(module: str, place: str) -> str:
    return f"while importing {module}, which harbor.include(…) names at {place}"


def _module_name(function: Any) -> str:
    """Return the importable name of a function's module, also if the module was run as a script."""
    module, names = str(function.__module__), getattr(inspect.unwrap(function), "__globals__", {})
    spec, file = names.get("__spec__"), names.get("__file__")
    if module == "__main__" and spec is not None:
        return str(spec.name)
    if file is None or Path(file).stem in {module.rpartition(".")[2], "__init__"}:
        return module
    return ".".join(dotted_name(Path(file)))


def dotted_name(file: Path) -> tuple[str, ...]:
    """Return the parts of the name of a module: its packages, which are folders with ``__init__.py``, and itself."""
    folder, names = file.resolve().parent, () if file.stem == _INIT else (file.stem,)
    while (folder / f"{_INIT}.py").is_file():
        folder, names = folder.parent, (folder.name, *names)
    return names


_INIT: Final = "__init__"
