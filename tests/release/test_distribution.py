"""The wheel and the sdist: what they contain, that they are reproducible, and that a user can install them."""

from __future__ import annotations

import json
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor import __version__
from tests.support.installed import install
from tools import release, sbom

if TYPE_CHECKING:
    from email.message import Message

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "src" / "taskharbor"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, which were built twice and checked."""
    folder = tmp_path_factory.mktemp("release") / "dist"
    assert release.main([str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(dist.glob("*.whl")))


def metadata(wheel: zipfile.ZipFile) -> Message:
    return message_from_string(wheel.read(f"taskharbor-{__version__}.dist-info/METADATA").decode())


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    ours = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == ours
    assert {"taskharbor/py.typed", "taskharbor/drivers/sqlite/migrations/0001_foundation.sql"} <= ours


def test_the_sdist_has_what_the_wheel_is_built_from(dist: Path) -> None:
    [path] = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "sbom.cdx.json",
        "src/taskharbor/py.typed",
    } <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/", ".cache", ".venv"))]


def test_two_builds_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        folder.mkdir()
        (folder / "taskharbor.whl").write_text(folder.name)

    monkeypatch.setattr(release, "build", build)

    assert release.main([str(tmp_path / "dist")]) == 1
    assert not (tmp_path / "dist").exists()


def test_the_metadata_names_version_license_urls_and_pythons(wheel: zipfile.ZipFile) -> None:
    found = metadata(wheel)
    classifiers = found.get_all("Classifier") or []
    urls = {each.split(",")[0] for each in found.get_all("Project-URL") or []}

    assert found["Version"] == __version__
    assert found["License-Expression"] == "Apache-2.0"
    assert urls == {"Homepage", "Documentation", "Changelog", "Source", "Issues"}
    tested = json.loads((ROOT / "docs" / "figures" / "pythons.json").read_text("utf-8"))["figures"]["pythons"]
    assert {each.rpartition(" ")[2] for each in classifiers if " :: 3." in each} == {*tested}


def test_the_wheel_has_the_bill_of_materials(wheel: zipfile.ZipFile) -> None:
    stored = wheel.read(f"taskharbor-{__version__}.dist-info/sboms/sbom.cdx.json").decode()
    document = json.loads(stored)

    assert stored == sbom.text(), "run python -m tools.sbom"
    assert document["metadata"]["component"]["version"] == __version__
    assert {each["name"] for each in document["components"]} >= {"click", "cronsim", "psycopg", "boto3", "fastapi"}


def test_the_wheel_is_installed_and_runs_jobs(dist: Path, tmp_path: Path) -> None:
    [wheel] = dist.glob("*.whl")

    installed = install(wheel, python=sys.executable, folder=tmp_path / "env")

    assert installed.version()["version"] == __version__
    assert installed.try_jobs().endswith("hello Ada 7")
