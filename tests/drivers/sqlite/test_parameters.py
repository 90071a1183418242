"""Parameters of statements are bound in a way that every supported Python accepts."""

from __future__ import annotations

import re
from pathlib import Path

import taskharbor.drivers.sqlite


def test_no_statement_numbers_its_parameters() -> None:
    # With "?1" and a sequence, Python 3.12 warns, and 3.14 raises an error. The text is searched as it is: in Python
    # 3.11, `ast.parse` may raise a SystemError while another thread formats a traceback.
    files = sorted(Path(taskharbor.drivers.sqlite.__file__).parent.rglob("*.py"))
    lines = [(file.name, line) for file in files for line in file.read_text("utf-8").splitlines()]

    assert [(name, line) for name, line in lines if re.search(r"\?\d", line)] == []
    assert any("?" in line for _, line in lines)
