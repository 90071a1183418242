"""Commands that write payloads: with the codec of the app, into its store or another."""

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
"""What is looked for where no attribute is named, in this order."""
WHERE: Final = "'taskharbor --debug worker ...' shows where"


def find_app(folder: Path | None = None) -> str:
    """Return the app of a project: `[tool.taskharbor] app` of its pyproject.toml, or the first file that is one."""
    folder = folder or Path.cwd()
    found = search_app(folder)
    if found is None:
        raise NoApp(str(folder), FILES)
    return found


def search_app(folder: Path | None = None) -> str | None:
    """Return what `find_app` returns, or None if there is no app: for commands that can do without one."""
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
    """Return the first of the usual files that speaks of us: importing any other could do anything."""
    for name in FILES:
        file = folder / name
        if file.is_file() and "taskharbor" in file.read_text("utf-8", errors="replace"):
            return name
    return None


def load_app(app: str) -> LoadedApp:
    """Import *app*: a harbor, a mapping from types to handlers, or a function that registers them on a worker."""
    place, attribute = _split(app)
    module = _import(place)
    value = _attribute(module, place, attribute) if attribute else _first_attribute(module, place)
    register = _registration(value)
    if register is None:
        why = f"it is of type {type(value).__name__}"
        way_out = "name a Harbor, a mapping from types to handlers, or a function that takes a worker"
        raise AppNotLoaded(app, why, way_out)
    return LoadedApp(app, register, value if isinstance(value, Harbor) else None)


class LoadedApp:
    """What was loaded: called with a worker, it registers its handlers there."""

    def __init__(self, name: str, register: Callable[[Worker], object], harbor: Harbor | None) -> None:
        self._name = name
        self._register = register
        self.harbor = harbor

    def __call__(self, worker: Worker) -> None:
        try:
            self._register(worker)
        except (Exception, SystemExit) as error:
            raise AppNotLoaded(self._name, _words(error), WHERE) from error
        if not worker.types:
            # It would turn every job it meets into a dead letter.
            raise AppNotLoaded(self._name, "it registers no handler", _way_to_register(self.harbor))


def _way_to_register(harbor: Harbor | None) -> str:
    return "call worker.register(type, handler) in it" if harbor is None else "put @harbor.task on a function of it"


def _split(app: str) -> tuple[str, str]:
    place, colon, attribute = app.rpartition(":")
    return (place, attribute) if colon and not app.endswith(".py") else (app, "")


def _registration(value: object) -> Callable[[Worker], object] | None:
    """Return how *value* is registered, or None if it cannot be."""
    if isinstance(value, Harbor):
        return value.register
    if isinstance(value, Mapping):
        return partial(_register_all, value)
    return value if callable(value) else None


def _register_all(handlers: Mapping[str, Callable[..., Any]], worker: Worker) -> None:
    for type, handler in handlers.items():
        worker.register(type, handler)


def _import(place: str) -> ModuleType:
    try:
        return _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    except AppNotLoaded:
        raise
    except ModuleNotFoundError as error:
        raise AppNotLoaded(place, _words(error), f"install {error.name!r} where taskharbor is installed") from error
    except SystemExit as error:
        way_out = "let it do so only under: if __name__ == '__main__'"
        raise AppNotLoaded(place, f"importing it ends the process {_at(error)}".rstrip(), way_out) from error
    except Exception as error:
        raise AppNotLoaded(place, _words(error), WHERE) from error


def _import_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise AppNotLoaded(str(file), "there is no such file", _nearest_file(file))
    # As for `python file.py`: what stands beside it can be imported.
    _search_in(file.resolve().parent)
    name = file.stem if file.stem not in {*sys.modules, *sys.stdlib_module_names} else f"{file.stem}_app"
    spec = spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:  # pragma: no cover  there is one for every file that ends with .py
        raise ImportError(str(file))
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    _search_in(Path.cwd())  # the command itself is installed elsewhere
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and what it imports is not
        raise AppNotLoaded(name, f"there is no module {error.name!r} in {Path.cwd()}", _file_for(name)) from error


def _search_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _nearest_file(file: Path) -> str:
    near = get_close_matches(file.name, [each.name for each in file.parent.glob("*.py")], n=1)
    return f"did you mean {file.parent / near[0]}?" if near else f"this is {Path.cwd()}"


def _file_for(name: str) -> str:
    files = [Path(name + ".py"), Path(name.replace(".", "/") + ".py")]
    found = [file for file in files if file.is_file()]
    return f"did you mean {found[0]}?" if found else "start in the folder that holds it, or name a file: tasks.py"


def _attribute(module: ModuleType, place: str, attribute: str) -> Any:
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        near = get_close_matches(attribute, _candidates(module), n=1)
        way_out = f"did you mean {place}:{near[0]}?" if near else _way_to_name(module, place)
        raise AppNotLoaded(place, f"it has no {attribute!r}", way_out) from error


def _first_attribute(module: ModuleType, place: str) -> Any:
    for name in NAMES:
        if hasattr(module, name):
            return getattr(module, name)
    raise AppNotLoaded(place, f"it has none of {', '.join(NAMES)}", _way_to_name(module, place))


def _way_to_name(module: ModuleType, place: str) -> str:
    """Say which names there are to choose from."""
    names = ", ".join(_candidates(module)[:5])
    return f"name one of its own, such as {place}:harbor" + (f" (it has {names})" if names else "")


def _candidates(module: ModuleType) -> list[str]:
    """Return the names of what the module itself made, and might be meant."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and _registration(value) is not None
        and getattr(value, "__module__", module.__name__) == module.__name__
    ]


def _words(error: BaseException) -> str:
    """Return an error of the user's code in one line, and where it is from."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    return f"{' '.join(str(Failure.of(error)).split())} {_at(error)}".rstrip()


def _at(error: BaseException) -> str:
    ours = ("<frozen importlib", __file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    return f"({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def harbor_for(app: str | None) -> Harbor:
    """Return the harbor of *app*, or of the app that is found as a worker finds it; without either, a new one."""
    named = search_app() if app is None else app
    loaded = None if named is None else load_app(named)
    return Harbor() if loaded is None or loaded.harbor is None else loaded.harbor


@contextmanager
def open_harbor(app: str | None, url: str | None) -> Iterator[Harbor]:
    """Give that harbor for the length of a command, with the store at *url* if that is given."""
    with harbor_for(app) as harbor:
        if url is not None:
            harbor.use_store(url)
        yield harbor
