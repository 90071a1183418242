"""Finds and imports the user's app: a harbor, a mapping of handlers, or a function that registers handlers."""

from __future__ import annotations

import logging
import sys
import sysconfig
import tomllib
import traceback
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial, reduce
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import taskharbor
from taskharbor.cli.errors import AppNotLoaded, NoApp
from taskharbor.cli.store import check_exists, check_shared, url_of
from taskharbor.core.errors import TaskHarborError
from taskharbor.core.failure import Failure
from taskharbor.harbor import Harbor
from taskharbor.observability.hook_caller import NO_HOOKS, HookCaller
from taskharbor.settings import Settings
from taskharbor.task_registry import dotted_name, place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from taskharbor.worker import Worker

_LOG: Final = logging.getLogger("taskharbor.client")
FILES: Final = ("tasks.py", "app.py", "jobs.py", "main.py")
PYPROJECT: Final = "pyproject.toml"
NAMES: Final = ("app", "harbor", "register", "handlers")
"""Attributes that are tried, in this order, if the app names none."""
_PACKAGE: Final = Path(taskharbor.__file__).parent
_INSTALLED: Final = [Path(folder) for name, folder in sysconfig.get_paths().items() if name.endswith("lib")]
DEBUG_HINT: Final = "'taskharbor --debug …' shows the traceback"


def find_app(folder: Path | None = None) -> str:
    """Return the app: TASKHARBOR_APP, `[tool.taskharbor] app` in pyproject.toml, or the first known file."""
    folder = folder or Path.cwd()
    found = search_app(folder)
    if found is None:
        raise NoApp(str(folder), FILES)
    return found


def search_app(folder: Path | None = None) -> str | None:
    """Return what `find_app` returns, or None if there is no app. For commands that do not require an app."""
    folder = folder or Path.cwd()
    return Settings.from_env().app or _configured(folder / PYPROJECT) or _first_file(folder)


def _configured(file: Path) -> str | None:
    try:
        config = tomllib.loads(file.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return None
    app = config.get("tool", {}).get("taskharbor", {}).get("app")
    return app if isinstance(app, str) else None


def _first_file(folder: Path) -> str | None:
    """Return the first known file that mentions taskharbor; importing any other could have side effects."""
    for name in FILES:
        file = folder / name
        if file.is_file() and "taskharbor" in file.read_text("utf-8", errors="replace"):
            return name
    return None


def load_app(app: str) -> LoadedApp:
    """Import *app*: a harbor, a mapping from types to handlers, or a function that registers them on a worker."""
    module_name, attribute = _split(app)
    module = _import(module_name)
    value = _attribute(module, module_name, attribute) if attribute else _first_attribute(module, module_name)
    register = _registration(value)
    if register is None:
        reason = f"it is of type {type(value).__name__}"
        fix = "name a Harbor, a mapping from types to handlers, or a function that takes a worker"
        raise AppNotLoaded(app, reason, fix)
    harbor = value if isinstance(value, Harbor) else None
    if harbor is not None:
        with _errors_of(app):
            harbor.check_tasks()
    return LoadedApp(app, register, harbor, module)


class LoadedApp:
    """A loaded app. Calling it with a worker registers its handlers on that worker."""

    def __init__(
        self, name: str, register: Callable[[Worker], object], harbor: Harbor | None, module: ModuleType
    ) -> None:
        self._name = name
        self._register = register
        self._module = module
        self.harbor = harbor

    def __call__(self, worker: Worker) -> None:
        with _errors_of(self._name):
            self._register(worker)
        if not worker.types:
            # Without handlers, the worker would turn every job into a dead letter.
            if self.harbor is None:
                raise AppNotLoaded(self._name, "it registers no handler", "call worker.register(type, handler) in it")
            raise AppNotLoaded(self._name, *_why_no_tasks(self._name, self._module))


def _why_no_tasks(app: str, module: ModuleType) -> tuple[str, str]:
    """Return why a harbor has no tasks, and what to do."""
    for name, other in sys.modules.items():
        if other is not module and getattr(other, "__file__", None) == module.__file__:
            twice = f"its module is loaded twice, as {module.__name__} and as {name}, so there are two harbors"
            return twice, f"name it as your modules import it: {name}"
    return "the harbor has no tasks", _how_to_import(app)


def _how_to_import(app: str) -> str:
    package, _, name = _split(app)[0].removesuffix(".py").replace("/", ".").rpartition(".")
    example = f"{package or 'shop'}.{'mail' if name != 'mail' else 'images'}"
    return (
        "import the modules that define your tasks, as in "
        f'harbor.include("{example}"), or put @harbor.task on a function in this one'
    )


def _split(app: str) -> tuple[str, str]:
    module_name, colon, attribute = app.rpartition(":")
    return (module_name, attribute) if colon and not app.endswith(".py") else (app, "")


def _registration(value: object) -> Callable[[Worker], object] | None:
    """Return a function that registers the handlers of *value*, or None if *value* has no known type."""
    if isinstance(value, Harbor):
        return value.register
    if isinstance(value, Mapping):
        return partial(_register_all, value)
    return value if isroutine(value) else None  # not every callable: tasks and apps of web frameworks are callable, too


def _register_all(handlers: Mapping[str, Callable[..., Any]], worker: Worker) -> None:
    for type, handler in handlers.items():
        worker.register(type, handler)


def _import(module_name: str) -> ModuleType:
    with _errors_of(module_name):
        return _import_file(Path(module_name)) if module_name.endswith(".py") else _import_module(module_name)


@contextmanager
def _errors_of(app: str) -> Iterator[None]:
    """Raise an error of the user's code as `AppNotLoaded`, with its place in the user's files."""
    try:
        yield
    except AppNotLoaded:
        raise
    except ModuleNotFoundError as error:
        raise AppNotLoaded(app, _describe(error), f"install {error.name!r}, or correct the import") from error
    except SystemExit as error:
        fix = "move that code under: if __name__ == '__main__'"
        raise AppNotLoaded(app, f"importing it ends the process at {_location(error)}", fix) from error
    except TaskHarborError as error:
        raise AppNotLoaded(app, _describe(error)) from error
    except Exception as error:
        raise AppNotLoaded(app, _describe(error), DEBUG_HINT) from error


def _import_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise AppNotLoaded(str(file), "file not found", _nearest_file(file))
    package = dotted_name(file)
    if len(package) > 1:
        # Under another name, modules that import this one from its package would get a second harbor.
        _search_in(file.resolve().parents[len(package) - 1])
        return import_module(".".join(package))
    # As with `python file.py`, modules in the same folder can be imported.
    _search_in(file.resolve().parent)
    name = file.stem if file.stem not in {*sys.modules, *sys.stdlib_module_names} else f"{file.stem}_app"
    spec = spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:  # pragma: no cover  every .py file has a loader
        raise ImportError(str(file))
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    _search_in(Path.cwd())  # not on sys.path by default, since the command is an installed script
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its imports does not
        raise AppNotLoaded(name, f"no module {error.name!r} in {Path.cwd()}", _file_for(name)) from error


def _search_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _nearest_file(file: Path) -> str:
    near = get_close_matches(file.name, [each.name for each in file.parent.glob("*.py")], n=1)
    return f"did you mean {file.parent / near[0]}?" if near else f"the current folder is {Path.cwd()}"


def _file_for(name: str) -> str:
    files = [Path(name + ".py"), Path(name.replace(".", "/") + ".py")]
    found = [file for file in files if file.is_file()]
    return f"did you mean {found[0]}?" if found else "run this in the folder that contains it, or name a file: tasks.py"


def _attribute(module: ModuleType, module_name: str, attribute: str) -> Any:
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        near = get_close_matches(attribute, _candidates(module), n=1)
        fix = f"did you mean {module_name}:{near[0]}?" if near else _how_to_name(module, module_name)
        raise AppNotLoaded(module_name, f"it has no {attribute!r}", fix) from error


def _first_attribute(module: ModuleType, module_name: str) -> Any:
    """Return the app of *module*: `app` may be that of a web framework, so a harbor comes first."""
    named = [getattr(module, name) for name in NAMES if hasattr(module, name)]
    harbors = list({id(value): value for value in vars(module).values() if isinstance(value, Harbor)}.values())
    found = [
        *(value for value in named if isinstance(value, Harbor)),
        *(value for value in named if _registration(value) is not None),
        *(harbors if len(harbors) == 1 else ()),
        *named,
    ]
    if found:
        return found[0]
    raise AppNotLoaded(module_name, f"it has none of {', '.join(NAMES)}", _how_to_name(module, module_name))


def _how_to_name(module: ModuleType, module_name: str) -> str:
    """Return a hint with the names that could be an app."""
    names = _candidates(module)
    shown = f" (it has {', '.join(names[:5])})" if names else ""
    return f"name an attribute, such as {module_name}:{names[0] if names else 'harbor'}{shown}"


def _candidates(module: ModuleType) -> list[str]:
    """Return the names of values that the module itself defines and that could be an app, harbors first."""
    names = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and _registration(value) is not None
        and (isinstance(value, Harbor) or getattr(value, "__module__", module.__name__) == module.__name__)
    ]
    return sorted(names, key=lambda name: not isinstance(vars(module)[name], Harbor))


def _describe(error: BaseException) -> str:
    """Return an error of the user's code in one line, with its location."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        location, text = place(error.filename, error.lineno or 0), f"{type(error).__name__}: {error.msg}"
    else:
        location = _location(error)
        text = " ".join((str(error) if isinstance(error, TaskHarborError) else str(Failure.of(error))).split())
    return ", ".join([f"{location}: {text}" if location else text, *getattr(error, "__notes__", ())])


def _location(error: BaseException) -> str:
    """Return the innermost line of the user's code that led to *error*; if there is none, of an installed package."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    users = [frame for frame in frames if not _is_installed(frame.filename)]
    # If only this package and what it calls are on the stack, no line helps.
    found = (users or ([] if isinstance(error, TaskHarborError) else frames))[-1:]
    return "".join(place(frame.filename, frame.lineno or 0) for frame in found)


def _is_ours(file: str) -> bool:
    return file.startswith("<frozen importlib") or Path(file).is_relative_to(_PACKAGE)


def _is_installed(file: str) -> bool:
    """Return whether *file* belongs to Python or to an installed package."""
    return file.startswith("<") or any(Path(file).is_relative_to(folder) for folder in _INSTALLED)


def harbor_for(app: str | None, *, searches: bool = True) -> Harbor:
    """Return the harbor of *app*; without *app*, that of the app that a worker would find, or else a new one."""
    named = search_app() if app is None and searches else app
    loaded = None if named is None else load_app(named)
    return Harbor() if loaded is None or loaded.harbor is None else loaded.harbor


def hooks_of(app: str | None) -> HookCaller:
    """Return what calls the hooks of *app*; without *app*, no app is imported, and there are none."""
    return NO_HOOKS if app is None else HookCaller(harbor_for(app).hooks, _LOG)


@contextmanager
def open_harbor(app: str | None, url: str | None, *, searches: bool = True, creates: bool = False) -> Iterator[Harbor]:
    """Open the harbor of `harbor_for` for the duration of a command, with the store at *url* if given.

    The file of *url* must exist, unless the command *creates* it: it may be mistyped.
    """
    with harbor_for(app, searches=searches) as harbor:
        if url is not None:
            harbor.use_store(url)
            if not creates:
                check_exists(url)
        check_shared(url_of(harbor))
        yield harbor
