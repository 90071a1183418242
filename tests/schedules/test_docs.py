from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "schedules.md"


def test_every_example_of_the_schedules_page_prints_its_output() -> None:
    names: dict[str, Any] = {"__name__": "examples"}
    printed = ""
    compared = 0
    for language, block in re.findall(r"```(python|text)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if language == "text":
            assert printed == block
            compared += 1
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, PAGE.name, "exec"), names)
        printed = out.getvalue()

    assert compared == 2
