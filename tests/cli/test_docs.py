"""docs/cli.md matches the commands."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import pytest

from taskharbor.cli.main import ExitCode, cli, run

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS: Final = Path(__file__).resolve().parent.parent.parent / "docs"
PAGE: Final = (DOCS / "cli.md").read_text("utf-8")
ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.mark.parametrize("page", ["cli.md", "operations.md"])
def test_documented_commands_print_the_documented_output(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKHARBOR_URL", "sqlite:///jobs.db")
    real: dict[str, str] = {}
    for line, shown in commands((DOCS / page).read_text("utf-8")):
        words = shlex.split(ID.sub(partial(_real, real), line))

        ended = run(cli, words[1:])

        printed = capsys.readouterr()
        assert ended == ExitCode.OK, (line, printed.err)
        assert form_of(printed.out) == form_of(shown), line
        real |= dict(zip(ID.findall(shown), ID.findall(printed.out), strict=True))


def test_the_documented_commands_exist() -> None:
    ctx = click.Context(cli)
    for row in re.findall(r"^\| (`.+?) \|", PAGE.partition("## Development")[0], re.MULTILINE):
        [(first, verb), *others] = re.findall(r"`([a-z]+)(?: ([a-z]+))?", row)
        group = cli.get_command(ctx, first)
        verbs = set(group.commands) if isinstance(group, click.Group) else set()

        assert group is not None, row
        assert {verb} - {""} <= verbs, row
        assert {name for name, _ in others} <= verbs | {*cli.list_commands(ctx)}, row


def test_the_page_has_every_exit_code() -> None:
    section = PAGE.partition("## Exit codes")[2].partition("## JSON")[0]

    assert [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)] == [*ExitCode]


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Yield every documented command and the output below it."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for part in block.split("$ ")[1:]:
            line, _, shown = part.partition("\n")
            yield line, shown


def _real(known: dict[str, str], found: re.Match[str]) -> str:
    return known.get(found[0], found[0])


def form_of(text: str) -> str:
    """Return *text* without the parts that differ between runs: ids, times, numbers, actors and spaces."""
    text = ID.sub("ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"by \S+@\S+", "by ACTOR", text)
    text = re.sub(r"\t[^\s=@]+@\S+\t", "\tACTOR\t", text)
    return re.sub(r"[ ]+", " ", re.sub(r"\d+([.:]\d+)*", "#", text))
