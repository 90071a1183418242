"""Commands that pages name are commands that exist, with their options and values."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import click
import pytest

from taskharbor.cli.main import cli
from tests.support.commands import check_words

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGES: Final = sorted({*DOCS.glob("*.md"), *DOCS.glob("guides/*.md"), *DOCS.glob("tutorials/*.md")})
_INLINE: Final = re.compile(r"`taskharbor ([^`]+)`")
_TYPED: Final = re.compile(r"^\$ taskharbor (.+)$", re.MULTILINE)

_INCOMPLETE: Final = re.compile(r"[…|]|\.\.\.|\[|^[A-Z-]|--[a-z-]+ [A-Z]+\b|--payload$")
_NAME: Final = re.compile(r"[a-z]+(?:-[a-z]+)*( [a-z]+(?:-[a-z]+)*)?")


def commands() -> list[tuple[str, str]]:
    """Return every command of every page, except those that are cut, stand for several, or have no values."""
    found = [
        (page.relative_to(DOCS).as_posix(), " ".join(words.split()))
        for page in PAGES
        for pattern in (_INLINE, _TYPED)
        for words in pattern.findall(page.read_text("utf-8"))
    ]
    return sorted({(page, words) for page, words in found if not _INCOMPLETE.search(words)})


@pytest.mark.parametrize(("page", "words"), commands())
def test_a_command_that_a_page_names_is_accepted(page: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHARBOR_URL", "postgresql://localhost/app")
    typed = shlex.split(words, comments=True)

    assert typed, page
    if _NAME.fullmatch(words):
        assert command_of(typed) is not None, page
    else:
        check_words([word for word in typed if word != "&"])


def command_of(words: list[str]) -> click.Command | None:
    command: click.Command | None = cli
    for word in words:
        assert isinstance(command, click.Group), words
        command = command.get_command(click.Context(command), word)
    return command
