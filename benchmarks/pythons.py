"""Installs the wheel on every Python of the machine, and runs jobs there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.installed import install, pythons
from tools.release import build


def figures() -> dict[str, object]:
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder / "dist")
        [wheel] = (folder / "dist").glob("*.whl")
        for version, python in pythons().items():
            installed = install(wheel, python=python, folder=folder / version)
            printed = installed.try_jobs()
            if "hello Ada 7" not in printed:
                raise RuntimeError(f"on Python {version} it printed {printed}")
            found[version] = f"{installed.version()['version']} ran a sync and an async job"
        return {"wheel": wheel.name, "pythons": found}


if __name__ == "__main__":
    print(figures())
