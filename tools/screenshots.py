"""Make the pictures of the dashboard in docs/images: the tests show its pages of a seeded store and save pictures.

python -m tools.screenshots [PAGE ...]     by default: the pages that the documents show
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
SCREENS: Final = ROOT / ".cache" / "screens"
IMAGES: Final = ROOT / "docs" / "images"
TESTS: Final = "tests/dashboard/test_screens.py"
SHOWN: Final = ("overview", "queue", "job", "dead-group", "workers")
WIDTH: Final = 1280


def main(names: Sequence[str]) -> int:
    pages = names or SHOWN
    ran = subprocess.run([sys.executable, "-m", "pytest", "-q", TESTS], cwd=ROOT, check=False)
    if ran.returncode != 0:
        return ran.returncode
    for name in pages:
        for theme in ("light", "dark"):
            target = IMAGES / f"dashboard-{name}-{theme}.png"
            shutil.copyfile(SCREENS / f"{name}-{theme}-{WIDTH}.png", target)
            print(target.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
