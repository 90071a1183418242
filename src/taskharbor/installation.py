"""The command that installs an optional extra, in the way in which TaskHarbor itself was installed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

NAME: Final = "taskharbor"
SOURCE: Final = Path(__file__).resolve().parents[2]


def install_command(extra: str) -> str:
    """Return the command that adds *extra* to this installation: from an index, a checkout, an archive or a repository.

    >>> install_command("postgres").split()[-1].strip("'").endswith("[postgres]")
    True
    """
    from importlib.metadata import Distribution, PackageNotFoundError  # noqa: PLC0415  slow to import, and rarely needed

    try:
        installed = Distribution.from_name(NAME)
    except PackageNotFoundError:  # imported from a checkout without being installed
        return f"pip install -e {shlex.quote(f'{SOURCE}[{extra}]')}"
    program = "uv pip" if (installed.read_text("INSTALLER") or "").strip() == "uv" else "pip"
    origin = installed.read_text("direct_url.json")
    return f"{program} install {_requirement(extra, json.loads(origin) if origin else None)}"


def _requirement(extra: str, origin: dict[str, Any] | None) -> str:
    """Return the arguments of ``pip install``. *origin* is direct_url.json, which only an index does not write."""
    name = f"{NAME}[{extra}]"
    match origin:
        case None:
            return shlex.quote(name)
        case {"url": str(url), "dir_info": {**info}}:
            option = "-e " if info.get("editable") else ""
            return option + shlex.quote(f"{unquote(urlsplit(url).path)}[{extra}]")
        case {"url": str(url), "vcs_info": {"vcs": str(vcs), **info}}:
            revision = info.get("requested_revision") or info.get("commit_id")
            return shlex.quote(f"{name} @ {vcs}+{url}" + (f"@{revision}" if revision else "") + _folder(origin))
        case _:
            return shlex.quote(f"{name} @ {origin['url']}{_folder(origin)}")


def _folder(origin: dict[str, Any]) -> str:
    return f"#subdirectory={origin['subdirectory']}" if "subdirectory" in origin else ""
