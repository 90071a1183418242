"""Parameters of statements are bound in a way that every supported Python accepts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import taskharbor.drivers.sqlite


def test_no_statement_numbers_its_parameters() -> None:
    # With "?1" and a sequence, Python 3.12 warns, and 3.14 raises an error.
    files = sorted(Path(taskharbor.drivers.sqlite.__file__).parent.rglob("*.py"))
    texts = [
        (file.name, node.lineno, node.value)
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]

    assert [(name, line) for name, line, text in texts if re.search(r"\?\d", text)] == []
    assert any("?" in text for _, _, text in texts)
