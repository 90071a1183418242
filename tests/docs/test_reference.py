"""The generated reference has every command, operation, setting, metric, exit code and exported name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click
import pytest

import taskharbor
from taskharbor.cli.main import ExitCode, cli
from taskharbor.core import errors
from taskharbor.settings import VARIABLES, Settings
from tools.reference import PARTS, http_api

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGES: Final = {path.name: path.read_text("utf-8") for path in sorted((DOCS / "reference").glob("*.md"))}


class Asked(Mapping[str, str]):
    """An environment that notes which variables were read."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def test_every_generated_part_is_on_a_page_and_every_page_names_one_that_exists() -> None:
    named = {name for page in PAGES.values() for name in re.findall(r"<!-- generated: ([a-z-]+) -->", page)}

    assert named == {*PARTS}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_generated_without_empty_tables_or_broken_rows(part: str) -> None:
    text = PARTS[part]()

    assert text
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_every_command_and_option_is_in_the_reference() -> None:
    text = PARTS["cli"]()

    for path, command in commands(cli, click.Context(cli)):
        assert re.search(rf"^#+ {path}$", text, re.MULTILINE), path
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[-1] in text


def commands(group: click.Group, ctx: click.Context, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if not command.hidden:
            yield before + name, command
            if isinstance(command, click.Group):
                yield from commands(command, ctx, f"{before}{name} ")


def test_the_table_of_variables_is_what_the_settings_read() -> None:
    asked = Asked()

    Settings.from_env(asked)

    assert asked.names == {*VARIABLES}
    assert all(f"`{name}`" in PARTS["settings"]() for name in VARIABLES)


def test_every_operation_is_in_the_reference() -> None:
    paths = http_api.document()["paths"]
    wanted = {
        f"## {method.upper()} {path}" for path, item in paths.items() for method in item if method != "parameters"
    }

    assert wanted == {*re.findall(r"^## .+$", PARTS["http"](), re.MULTILINE)}


def test_every_code_that_the_page_of_the_api_explains_is_in_the_reference() -> None:
    section = (DOCS / "http.md").read_text("utf-8").partition("## Errors")[2].partition("\n## ")[0]
    explained = {
        code
        for row in re.findall(r"^\| \d.+$", section, re.MULTILINE)
        for code in re.findall(r"`([a-z]+(?:-[a-z]+)+|malformed|unauthorized|overloaded)`", row)
    }

    assert explained <= {*re.findall(r"`([a-z-]+)`", PARTS["http-codes"]())}


def test_every_exit_code_and_every_error_of_the_core_is_in_the_reference() -> None:
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", PARTS["exit-codes"](), re.MULTILINE)]
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}

    assert codes == [*ExitCode]
    assert kinds <= {*re.findall(r"^\| `(\w+)`", PARTS["errors"](), re.MULTILINE)}


def test_every_exported_name_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "python.html").read_text("utf-8")

    assert [
        name for name in taskharbor.__all__ if name != "__version__" and f'id="taskharbor.{name}"' not in page
    ] == []
