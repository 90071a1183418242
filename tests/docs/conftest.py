from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
LIMIT_SECONDS: Final = 300  # it takes about 12 s of CPU time; other groups run beside it


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation site, built as `make docs` does."""
    target = tmp_path_factory.mktemp("site") / "docs"
    built = subprocess.run(
        [sys.executable, "-m", "tools.docs_site", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return target
