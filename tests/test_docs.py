"""The docs say what is so."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from tools import states

ROOT: Final = Path(__file__).resolve().parent.parent
TESTS: Final = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("src/taskharbor/testing/conformance/*.py")]
COVERED: Final = tomllib.loads((ROOT / "tests" / "requirements.toml").read_text())


def known_tests() -> set[str]:
    return {name for file in TESTS for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}


def named_tests(page: str) -> dict[str, list[str]]:
    """Return the rows of a page's tables, without their headings, each with the tests that it names."""
    rows = re.sub(r"^\|.+\|\n\|[-|]+\|$", "", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    return {row: re.findall(r"`(test_\w+)`", row) for row in re.findall(r"^\|(.+)\|$", rows, re.MULTILINE)}


@pytest.mark.parametrize("page", ["guarantees.md", "mapping.md"])
def test_every_test_that_a_table_names_exists(page: str) -> None:
    assert {name for names in named_tests(page).values() for name in names} <= known_tests()


def test_every_promise_names_a_test() -> None:
    assert all(named_tests("guarantees.md").values())


def test_every_name_and_rule_of_the_original_documents_has_a_test_or_is_not_there_yet() -> None:
    rows = named_tests("mapping.md")

    assert rows
    assert not [row for row, names in rows.items() if not names and "not there yet" not in row]


@pytest.mark.parametrize("section", COVERED)
def test_every_covered_requirement_names_tests_that_exist(section: str) -> None:
    named = {name for names in COVERED[section].values() for name in names}

    assert all(COVERED[section].values())
    assert named <= known_tests()


def test_every_covered_requirement_is_one_of_those_there_are() -> None:
    assert set(map(int, COVERED["requirements"])) <= set(range(1, 304))
    assert set(map(int, COVERED["traps"])) <= set(range(1, 22))


def test_no_two_cases_of_the_kit_have_the_same_name() -> None:
    files = ROOT.glob("src/taskharbor/testing/conformance/*.py")
    names = [name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)]

    assert len(names) == len(set(names))


def test_the_page_of_states_is_the_table() -> None:
    assert states.PAGE.read_text() == states.page(), "render it anew: python -m tools.states"


def test_every_python_block_of_the_readme_runs_and_prints_what_stands_below_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```(\w+)\n(.*?)```", readme, re.DOTALL)
    names: dict[str, Any] = {}
    printed = None
    for language, block in blocks:
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block, "README.md", "exec"), names)
            printed = out.getvalue()
        elif language == "text" and printed is not None:
            assert printed == block


def test_the_readme_shows_what_the_demo_prints() -> None:
    from examples import demo  # noqa: PLC0415  it moves a clock of its own, for this test only

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        demo.Demo().run()

    assert out.getvalue() in (ROOT / "README.md").read_text()
