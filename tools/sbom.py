"""Write sbom.cdx.json, the software bill of materials that wheel and sdist contain: python -m tools.sbom.

It is CycloneDX 1.6, made from the metadata in pyproject.toml alone, so it is the same on every machine. TaskHarbor
contains no code of others, except the files that `VENDORED` lists; what it needs is listed with the range that is
allowed, because the versions are chosen when it is installed.
"""

from __future__ import annotations

import json
import re
import tomllib
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
FILE: Final = ROOT / "sbom.cdx.json"
VENDORED: Final = ROOT / "src" / "taskharbor" / "vendored.toml"
"""Files of others inside the package, if there are any: name, version, license and path of each."""


def main() -> None:
    FILE.write_text(text(), encoding="utf-8")


def text() -> str:
    return json.dumps(document(), indent=2) + "\n"


def document() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    name, version = project["name"], _version()
    needed = {each["bom-ref"]: each for each in _components(project)}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'pkg:pypi/{name}@{version}')}",
        "version": 1,
        "metadata": {
            "component": {
                "bom-ref": name,
                "type": "library",
                "name": name,
                "version": version,
                "description": project["description"],
                "licenses": [{"expression": project["license"]}],
                "purl": f"pkg:pypi/{name}@{version}",
            }
        },
        "components": [*needed.values(), *_vendored()],
        "dependencies": [{"ref": name, "dependsOn": [*needed]}],
    }


def _version() -> str:
    source = (ROOT / "src" / "taskharbor" / "_version.py").read_text("utf-8")
    [found] = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    return str(found)


def _components(project: dict[str, Any]) -> Iterator[dict[str, Any]]:
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra, requirements in groups.items():
        for requirement in map(Requirement, requirements):
            if requirement.name != project["name"]:
                yield _component(requirement, extra)


def _component(requirement: Requirement, extra: str) -> dict[str, Any]:
    properties = [{"name": "taskharbor:range", "value": str(requirement.specifier)}]
    if extra:
        properties.append({"name": "taskharbor:extra", "value": extra})
    return {
        "bom-ref": requirement.name,
        "type": "library",
        "name": requirement.name,
        "scope": "optional" if extra else "required",
        "purl": f"pkg:pypi/{requirement.name}",
        "properties": properties,
    }


def _vendored() -> Iterator[dict[str, Any]]:
    files = tomllib.loads(VENDORED.read_text("utf-8"))["file"] if VENDORED.exists() else []
    for each in files:
        yield {
            "bom-ref": each["path"],
            "type": "library",
            "name": each["name"],
            "version": each["version"],
            "scope": "required",
            "licenses": [{"license": {"id": each["license"]}}],
            "properties": [{"name": "taskharbor:path", "value": each["path"]}],
        }


if __name__ == "__main__":
    main()
