"""The command that installs an extra, for each way in which TaskHarbor can be installed."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement

from taskharbor import installation
from taskharbor.installation import install_command

if TYPE_CHECKING:
    from pathlib import Path

GIT = {"url": "https://example.org/taskharbor.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b2c"}}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'taskharbor[postgres]'"),
        (
            {"url": "file:///src/task%20harbor", "dir_info": {"editable": True}},
            "pip install -e '/src/task harbor[postgres]'",
        ),
        ({"url": "file:///src/taskharbor", "dir_info": {}}, "pip install '/src/taskharbor[postgres]'"),
        (GIT, "pip install 'taskharbor[postgres] @ git+https://example.org/taskharbor.git@0a1b2c'"),
        (
            GIT | {"vcs_info": GIT["vcs_info"] | {"requested_revision": "main"}, "subdirectory": "python"},  # type: ignore[operator]
            "pip install 'taskharbor[postgres] @ git+https://example.org/taskharbor.git@main#subdirectory=python'",
        ),
        (
            {"url": "file:///dist/taskharbor-1.0-py3-none-any.whl", "archive_info": {}},
            "pip install 'taskharbor[postgres] @ file:///dist/taskharbor-1.0-py3-none-any.whl'",
        ),
    ],
)
def test_the_command_repeats_how_taskharbor_was_installed(
    origin: dict[str, Any] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, origin)

    assert install_command("postgres") == command
    wanted = shlex.split(command)[-1]
    assert wanted.startswith("/") or Requirement(wanted).extras == {"postgres"}


def test_an_installation_by_uv_is_extended_by_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, None, installer="uv")

    assert install_command("api") == "uv pip install 'taskharbor[api]'"


def test_a_checkout_that_is_not_installed_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "NAME", "not-installed-under-this-name")

    assert install_command("api") == f"pip install -e '{installation.SOURCE}[api]'"
    assert (installation.SOURCE / "pyproject.toml").is_file()


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, *, installer: str = "pip"
) -> None:
    """Write the metadata of an installation, and let Python find it before the real one."""
    metadata = folder / "taskharbor-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: taskharbor\nVersion: 1.0\n")
    (metadata / "INSTALLER").write_text(f"{installer}\n")
    if origin is not None:
        (metadata / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(folder)
