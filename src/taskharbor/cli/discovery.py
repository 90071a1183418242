"""Finding the app where none was named: in pyproject.toml, or in a file that is called as such files are."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from taskharbor.cli.refusals import NoApp

FILES: Final = ("tasks.py", "app.py", "jobs.py", "main.py")
PYPROJECT: Final = "pyproject.toml"


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
