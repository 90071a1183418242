"""Every block of the tutorials runs, in the order of the page, and prints what the page shows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.postgres import database
from tests.support.shell import Shell
from tests.support.tutorial import follow, missing_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

TUTORIALS: Final = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
URL: Final = "postgresql://localhost/app"


@pytest.fixture
def instead(page: Path) -> Iterator[dict[str, str]]:
    """What is replaced in a page: the URL of a database."""
    if URL not in page.read_text("utf-8"):
        yield {}
        return
    with database(migrated=False) as url:
        yield {URL: url}


@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_prints_what_it_shows(page: Path, instead: dict[str, str], tmp_path: Path) -> None:
    text = page.read_text("utf-8")
    if "$ curl " in text and shutil.which("curl") is None:
        pytest.skip("NOT RUN: this machine has no curl")

    typed = follow(text, Shell(tmp_path), instead=instead)

    assert len(typed) == text.count("\n$ ")
    assert len(typed) > 5


def test_a_line_that_is_not_printed_is_found() -> None:
    shown, printed = "took 1.5 s\nrequeued 1 of 1\n", "took 0.3 s\nrequeued 3 of 4\n"

    assert missing_lines(shown, printed) == ["requeued 1 of 1"]
