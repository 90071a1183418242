"""Finds and imports the user's app: a harbor, a mapping of handlers, or a function that registers handlers."""

from __future__ import annotations

import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial, reduce
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskharbor.cli.errors import AppNotLoaded, NoApp
from taskharbor.core.failure import Failure
from taskharbor.harbor import Harbor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from taskharbor.worker import Worker

FILES: Final = ("tasks.py", "app.py", "jobs.py", "main.py")
PYPROJECT: Final = "pyproject.toml"
NAMES: Final = ("app", "harbor", "register", "handlers")
"""Attributes that are tried, in this order, if the app names none."""
DEBUG_HINT: Final = "'taskharbor --debug worker ...' shows where"


def find_app(folder: Path | None = None) -> str:
    """Return the app of a project: `[tool.taskharbor] app` in pyproject.toml, or the first known file that exists."""
    folder = folder or Path.cwd()
    found = search_app(folder)
    if found is None:
        raise NoApp(str(folder), FILES)
    return found


def search_app(folder: Path | None = None) -> str | None:
    """Return what `find_app` returns, or None if there is no app. For commands that do not require an app."""
    folder = folder or Path.cwd()
    return _configured(folder / PYPROJECT) or _first_file(folder)


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
    return LoadedApp(app, register, value if isinstance(value, Harbor) else None)


class LoadedApp:
    """A loaded app. Calling it with a worker registers its handlers on that worker."""

    def __init__(self, name: str, register: Callable[[Worker], object], harbor: Harbor | None) -> None:
        self._name = name
        self._register = register
        self.harbor = harbor

    def __call__(self, worker: Worker) -> None:
        try:
            self._register(worker)
        except (Exception, SystemExit) as error:
            raise AppNotLoaded(self._name, _describe(error), DEBUG_HINT) from error
        if not worker.types:
            # Without handlers, the worker would turn every job into a dead letter.
            raise AppNotLoaded(self._name, "it registers no handler", _how_to_register(self.harbor))


def _how_to_register(harbor: Harbor | None) -> str:
    return "call worker.register(type, handler) in it" if harbor is None else "put @harbor.task on a function in it"


def _split(app: str) -> tuple[str, str]:
    module_name, colon, attribute = app.rpartition(":")
    return (module_name, attribute) if colon and not app.endswith(".py") else (app, "")


def _registration(value: object) -> Callable[[Worker], object] | None:
    """Return a function that registers the handlers of *value*, or None if *value* has no known type."""
    if isinstance(value, Harbor):
        return value.register
    if isinstance(value, Mapping):
        return partial(_register_all, value)
    return value if callable(value) else None


def _register_all(handlers: Mapping[str, Callable[..., Any]], worker: Worker) -> None:
    for type, handler in handlers.items():
        worker.register(type, handler)


def _import(module_name: str) -> ModuleType:
    try:
        return _import_file(Path(module_name)) if module_name.endswith(".py") else _import_module(module_name)
    except AppNotLoaded:
        raise
    except ModuleNotFoundError as error:
        raise AppNotLoaded(module_name, _describe(error), f"install {error.name!r}") from error
    except SystemExit as error:
        fix = "move that code under: if __name__ == '__main__'"
        raise AppNotLoaded(module_name, f"importing it ends the process {_location(error)}".rstrip(), fix) from error
    except Exception as error:
        raise AppNotLoaded(module_name, _describe(error), DEBUG_HINT) from error


def _import_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise AppNotLoaded(str(file), "file not found", _nearest_file(file))
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
    for name in NAMES:
        if hasattr(module, name):
            return getattr(module, name)
    raise AppNotLoaded(module_name, f"it has none of {', '.join(NAMES)}", _how_to_name(module, module_name))


def _how_to_name(module: ModuleType, module_name: str) -> str:
    """Return a hint with the names that could be an app."""
    names = ", ".join(_candidates(module)[:5])
    return f"name an attribute, such as {module_name}:harbor" + (f" (it has {names})" if names else "")


def _candidates(module: ModuleType) -> list[str]:
    """Return the names of values that the module itself defines and that could be an app."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and _registration(value) is not None
        and getattr(value, "__module__", module.__name__) == module.__name__
    ]


def _describe(error: BaseException) -> str:
    """Return an error of the user's code in one line, with its location."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    return f"{' '.join(str(Failure.of(error)).split())} {_location(error)}".rstrip()


def _location(error: BaseException) -> str:
    skipped = ("<frozen importlib", __file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(skipped)]
    return f"({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def harbor_for(app: str | None) -> Harbor:
    """Return the harbor of *app*; without *app*, that of the app that a worker would find, or else a new one."""
    named = search_app() if app is None else app
    loaded = None if named is None else load_app(named)
    return Harbor() if loaded is None or loaded.harbor is None else loaded.harbor


@contextmanager
def open_harbor(app: str | None, url: str | None) -> Iterator[Harbor]:
    """Open the harbor of `harbor_for` for the duration of a command, with the store at *url* if given."""
    with harbor_for(app) as harbor:
        if url is not None:
            harbor.use_store(url)
        yield harbor
