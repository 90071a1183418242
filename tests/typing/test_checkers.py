"""What both type checkers say to calls that are right, and to calls that are wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

SNIPPETS: Final = Path(__file__).parent / "snippets"
BIN: Final = Path(sys.executable).parent
LIMIT: Final = 120  # seconds


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_calls_that_are_right_pass(checker: str) -> None:
    assert refused_by(checker, SNIPPETS / "right.py") == {}


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_every_call_that_is_wrong_is_refused_and_no_other(checker: str) -> None:
    file = SNIPPETS / "wrong.py"
    marked = {n for n, line in enumerate(file.read_text().splitlines(), 1) if line.endswith("# wrong")}

    refused = refused_by(checker, file)

    assert len(marked) > 20
    assert set(refused) == marked, {n: refused.get(n, "accepted") for n in {*refused} ^ marked}


def refused_by(checker: str, file: Path) -> dict[int, str]:
    """Return what *checker* says against *file*, by line."""
    return {"mypy": _mypy, "basedpyright": _pyright}[checker](file)


def _mypy(file: Path) -> dict[int, str]:
    said = _run([str(BIN / "mypy"), "--no-error-summary", "--hide-error-context", str(file)])
    found = re.findall(rf"{re.escape(file.name)}:(\d+): error: (.*)", said)
    assert found or not said.strip(), said
    return {int(line): words for line, words in found}


def _pyright(file: Path) -> dict[int, str]:
    said = json.loads(_run([str(BIN / "basedpyright"), "--outputjson", "--level", "error", str(file)]))
    assert said["summary"]["filesAnalyzed"] == 1
    return {each["range"]["start"]["line"] + 1: each["message"] for each in said["generalDiagnostics"]}


def _run(command: list[str]) -> str:
    root = SNIPPETS.parents[2]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=LIMIT, check=False).stdout
