"""The documentation matches the code: named tests and files exist, examples run, rendered pages are current."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.worker.pipeline import STAGES, build_pipeline
from tools import render_picture, render_states

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
TESTS: Final = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("src/taskharbor/testing/conformance/*.py")]
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SOURCES: Final = sorted(ROOT.glob("src/**/*.py"))
COVERED: Final = tomllib.loads((ROOT / "tests" / "repo" / "requirements.toml").read_text())


def known_tests() -> set[str]:
    return {name for file in TESTS for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}


def named_tests(page: str) -> dict[str, list[str]]:
    """Return the rows of a page's tables without headings, each with the tests that it names."""
    rows = re.sub(r"^\|.+\|\n\|[-|]+\|$", "", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    return {row: re.findall(r"`(test_\w+)`", row) for row in re.findall(r"^\|(.+)\|$", rows, re.MULTILINE)}


@pytest.mark.parametrize(
    "page",
    [
        "audit.md",
        "cli.md",
        "cpu-work.md",
        "crashes.md",
        "dead-letters.md",
        "delivery.md",
        "django.md",
        "doctor.md",
        "fastapi.md",
        "flask.md",
        "guarantees.md",
        "hooks.md",
        "internals/requirements.md",
        "logging.md",
        "metrics.md",
        "probes.md",
        "operations.md",
        "tasks.md",
        "testing.md",
        "tracing.md",
        "versions.md",
        "workers.md",
    ],
)
def test_every_test_named_in_a_table_exists(page: str) -> None:
    assert {name for names in named_tests(page).values() for name in names} <= known_tests()


def test_every_promise_names_a_test() -> None:
    assert all(named_tests("guarantees.md").values())


def test_every_name_and_rule_of_the_original_documents_has_a_test() -> None:
    rows = named_tests("internals/requirements.md")

    assert rows
    assert not [row for row, names in rows.items() if not names]
    assert "not there yet" not in (ROOT / "docs" / "internals" / "requirements.md").read_text().lower()


def test_the_two_modes_are_compared_by_figures_that_were_measured() -> None:
    page = (ROOT / "docs" / "delivery.md").read_text()
    measured = json.loads((ROOT / "docs" / "figures" / "sqs.json").read_text())["figures"]["both modes, our endpoint"]

    started = measured["milliseconds from enqueue to start"]
    assert f"| {started['polling']['p50']:.0f} ms | {started['SQS']['p50']:.0f} ms |" in page
    assert f"| {round(measured['jobs a second']['SQS'], -1):,} |" in page


@pytest.mark.parametrize("section", COVERED)
def test_every_covered_requirement_names_tests_that_exist(section: str) -> None:
    named = {name for names in COVERED[section].values() for name in names}

    assert all(COVERED[section].values())
    assert named <= known_tests()


def test_every_requirement_and_every_trap_is_covered() -> None:
    assert list(map(int, COVERED["requirements"])) == [*range(1, 304)]
    assert list(map(int, COVERED["traps"])) == [*range(1, 22)]


def test_no_two_cases_of_the_kit_have_the_same_name() -> None:
    files = ROOT.glob("src/taskharbor/testing/conformance/*.py")
    names = [name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)]

    assert len(names) == len(set(names))


def test_the_states_page_matches_the_table() -> None:
    assert render_states.PAGE.read_text() == render_states.page(), "run python -m tools.render_states"


def test_the_picture_names_the_stages_that_the_pipeline_builds() -> None:
    assert {*STAGES} <= {*build_pipeline.__code__.co_varnames}


@pytest.mark.parametrize("path", render_picture.pictures(), ids=lambda path: path.stem)
def test_the_picture_is_what_its_tool_draws(path: Path) -> None:
    assert path.read_text("utf-8") == render_picture.pictures()[path], "run python -m tools.render_picture"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_python_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    named = set(re.findall(r"(?<![\w./-])\w[\w.-]*/(?:[\w.-]+/)*\w+\.py\b", text))
    named -= set(re.findall(r"^```python\n# ([\w/]+\.py)", text, re.MULTILINE))  # those that the reader creates

    assert [path for path in sorted(named) if not is_in_the_repository(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = re.findall(r"(?:\]\(|src=\"|srcset=\")(?!https?:)([^)\"#\s]*)(?:#([\w-]+))?[)\"]", page.read_text("utf-8"))
    targets = [(page.parent / path if path else page, anchor) for path, anchor in links]

    assert [str(path) for path, _ in targets if not path.exists()] == []
    assert [f"{path}#{anchor}" for path, anchor in targets if anchor and anchor not in anchors_of(path)] == []


def is_in_the_repository(path: str) -> bool:
    """Return whether *path* is a file below the root, the package, or a package inside it."""
    return (ROOT / path).exists() or any(file.as_posix().endswith(f"/{path}") for file in SOURCES)


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks_of_the_readme() -> list[tuple[str, str]]:
    return re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_every_python_block_of_the_readme_prints_its_output(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    blocks = blocks_of_the_readme()
    place = place_of_the_worker(blocks)
    (tmp_path / "greetings.py").write_text(blocks[0][1])
    names: dict[str, Any] = {}
    printed = None
    for number, (language, block) in enumerate(blocks[1:], 1):
        with worker_of(blocks[place][1], tmp_path) if number == place + 1 else contextlib.nullcontext():
            if language == "python":
                printed = printed_by(block, names)
            elif language == "text" and printed is not None:
                assert printed == block
    names["harbor"].close()
    names["shop"].close()
    sys.modules.pop("greetings")


@pytest.mark.parametrize(
    "page",
    [
        "client.md",
        "cpu-work.md",
        "dead-letters.md",
        "guides/from-celery.md",
        "guides/from-procrastinate.md",
        "guides/from-rq.md",
        "hooks.md",
        "logging.md",
        "metrics.md",
        "tasks.md",
        "testing.md",
        "tracing.md",
        "workers.md",
    ],
)
def test_every_python_block_of_a_page_prints_the_text_below_it(page: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for language, block in re.findall(r"```(python|text)\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL):
        if language == "python":
            printed = printed_by(block, names)
        elif not block.startswith("examples/"):
            assert printed == block


def test_the_files_of_several_modules_are_those_of_the_example() -> None:
    shown = re.findall(r"```py\n# (examples/\S+)\n(.*?)```", (ROOT / "docs" / "tasks.md").read_text(), re.DOTALL)

    assert len(shown) == 2
    assert {path: (ROOT / path).read_text() for path, _ in shown} == dict(shown)


def test_the_example_with_several_modules_runs(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "shop", tmp_path, dirs_exist_ok=True)
    enqueue = "from shop.images import thumbnail; print(thumbnail.enqueue('a.png', 80).result(30))"

    with worker_of("$ taskharbor worker", tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", enqueue], cwd=tmp_path, check=True, timeout=60, capture_output=True, text=True
        )

    assert done.stdout == "a-80.png\n"


def place_of_the_worker(blocks: list[tuple[str, str]]) -> int:
    [place] = [n for n, (_, block) in enumerate(blocks) if block.startswith("$ taskharbor worker greetings.py --grace")]
    return place


def printed_by(block: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, "README.md", "exec"), names)
    return out.getvalue()


@contextlib.contextmanager
def worker_of(command: str, folder: Path) -> Iterator[Path]:
    """Run a worker command in *folder*, and yield the file with its log."""
    log_file = folder / "stderr"
    with log_file.open("w") as stderr:
        words = command.removeprefix("$ taskharbor").split()
        worker = subprocess.Popen([sys.executable, "-m", "taskharbor.cli", *words], cwd=folder, stderr=stderr)
    try:
        yield log_file
        worker.terminate()
        assert worker.wait(timeout=30) == 0
    finally:
        worker.kill()
        worker.wait()


def test_the_worker_of_the_readme_runs_and_logs_the_job(tmp_path: Path) -> None:
    blocks = blocks_of_the_readme()
    place = place_of_the_worker(blocks)
    command, enqueue, log = [block for _, block in blocks[place : place + 3]]
    (tmp_path / "greetings.py").write_text(blocks[0][1])

    with worker_of(command, tmp_path) as log_file:
        done = subprocess.run(
            [sys.executable, "-c", enqueue], cwd=tmp_path, check=True, timeout=60, capture_output=True, text=True
        )
        assert done.stdout == "hello Grace\n"

    assert {form_of(line) for line in log.splitlines()} <= {
        form_of(line[24:]) for line in log_file.read_text().splitlines()
    }


def test_the_readme_shows_the_output_of_the_demo() -> None:
    [shown] = [block for _, block in blocks_of_the_readme() if block.startswith("$ make demo\n")]

    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert_ledger_is_clean(shown)
    assert_ledger_is_clean(done.stdout)
    # Times and counts differ between runs; the wording does not.
    assert {*map(form_of, shown.splitlines()[1:])} == {*map(form_of, done.stdout.splitlines())}


def assert_ledger_is_clean(text: str) -> None:
    accepted, succeeded, dead = map(
        int, re.findall(r"^accepted (\d+) · succeeded (\d+) · dead (\d+) · unfinished 0$", text, re.MULTILINE)[0]
    )
    assert accepted == succeeded + dead
    assert dead == 3  # one kills its workers, two fail for good
    assert "\nlost 0 · overlapping 0\n" in text
    assert re.search(r"killed worker \d with SIGKILL", text)


def form_of(line: str) -> str:
    """Return *line* without the parts that differ between runs: ids and numbers."""
    return re.sub(r" *\d+(\.\d+)?", "#", re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", line))
