"""Tests that mypy and basedpyright accept correct calls of tasks and reject wrong ones."""

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
TIMEOUT_SECONDS: Final = 120


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
    """Return the errors that *checker* reports for *file*, by line."""
    return {"mypy": _mypy, "basedpyright": _pyright}[checker](file)


def _mypy(file: Path) -> dict[int, str]:
    output = _run([str(BIN / "mypy"), "--no-error-summary", "--hide-error-context", str(file)])
    found = re.findall(rf"{re.escape(file.name)}:(\d+): error: (.*)", output)
    assert found or not output.strip(), output
    return {int(line): message for line, message in found}


def _pyright(file: Path) -> dict[int, str]:
    output = json.loads(_run([str(BIN / "basedpyright"), "--outputjson", "--level", "error", str(file)]))
    assert output["summary"]["filesAnalyzed"] == 1
    return {each["range"]["start"]["line"] + 1: each["message"] for each in output["generalDiagnostics"]}


def _run(command: list[str]) -> str:
    root = SNIPPETS.parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    return done.stdout
