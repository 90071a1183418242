"""The environment variables."""

from __future__ import annotations

from taskharbor.settings import VARIABLES
from tools.reference.markdown import code, table


def variables() -> str:
    return table(["variable", ""], ((code(name), what) for name, what in VARIABLES.items()))
