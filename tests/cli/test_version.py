from __future__ import annotations

import json
import platform

from click.testing import CliRunner

from taskharbor import __version__
from taskharbor.cli.main import cli


def test_version_says_what_is_installed() -> None:
    done = CliRunner().invoke(cli, ["version"])

    python, system = platform.python_version(), platform.platform()
    assert done.stdout == f"taskharbor {__version__} (Python {python}, {system})\n"
    assert done.stderr == ""


def test_version_as_json_holds_the_same_facts() -> None:
    done = CliRunner().invoke(cli, ["version", "--json"])

    facts = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
    assert json.loads(done.stdout) == facts


def test_the_version_option_prints_the_bare_version() -> None:
    done = CliRunner().invoke(cli, ["--version"])

    assert done.stdout == f"taskharbor {__version__}\n"
