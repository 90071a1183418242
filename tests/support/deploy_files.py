"""Reads the files of deploy/: which commands they run, and with which settings."""

from __future__ import annotations

import re
import shlex
from configparser import ConfigParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
UNITS: Final = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS: Final = sorted(set((DEPLOY / "kubernetes").glob("*.yaml")) - {DEPLOY / "kubernetes" / "kustomization.yaml"})


class UnitParser(ConfigParser):
    """Reads a unit of systemd: names keep their case, and `%` has no meaning."""

    def __init__(self) -> None:
        super().__init__(interpolation=None, comment_prefixes=("#", ";"), strict=False)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit(path: Path) -> UnitParser:
    parser = UnitParser()
    parser.read(path, "utf-8")
    return parser


def resources(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text("utf-8")) if each]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the template of each pod in the manifests, with the name of its resource."""
    for path in MANIFESTS:
        for resource in resources(path):
            if "template" in resource.get("spec", {}):
                yield resource["metadata"]["name"], resource["spec"]["template"]["spec"]


def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, with their arguments in one line."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text("utf-8")
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    pairs = [line.partition(" ") for line in lines if line.strip()]
    return [(name, " ".join(rest.split())) for name, _, rest in pairs]


def commands() -> dict[str, list[str]]:
    """Return the words after ``taskharbor`` of every command in deploy/, by where it is."""
    found = {f"compose {name}": words for name, words in _of_compose()}
    found |= {f"kubernetes {name}": pod["containers"][0]["args"] for name, pod in pods()}
    for path in UNITS:
        found[f"systemd {path.name}"] = shlex.split(unit(path)["Service"]["ExecStart"])[1:]
    [health] = [rest for name, rest in dockerfile() if name == "HEALTHCHECK"]
    found["docker health check"] = re.findall(r'"([^"]+)"', health.partition("CMD")[2])[1:]
    for path in sorted(DEPLOY.rglob("*")):
        if path.is_file() and path.suffix in {".sh", ".yaml", ".service"}:
            for number, line in enumerate(_typed(path), 1):
                found[f"{path.name} {number}"] = line
    return found


def _of_compose() -> Iterator[tuple[str, list[str]]]:
    for name, service in COMPOSE["services"].items():
        if service.get("image", "").startswith("taskharbor") and "entrypoint" not in service:
            yield name, service["command"]


def _typed(path: Path) -> Iterator[list[str]]:
    """Yield the commands that a script runs, or that a comment says to type."""
    for line in path.read_text("utf-8").splitlines():
        for typed in re.findall(r"(?:^\s*|\(|`|exec api )taskharbor ([^)`>]+)", line):
            yield shlex.split(typed)
