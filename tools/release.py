"""Build the wheel and the sdist to dist/, twice, and check them: python -m tools.release [FOLDER] (or make dist).

Both builds must be equal byte by byte. The time in the archives is `EPOCH`, or SOURCE_DATE_EPOCH if it is set. The
wheel is built from the sdist, so that it needs nothing that the sdist does not contain.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
EPOCH: Final = "1794960000"  # 2026-11-18; any time after 1980 will do


def main(arguments: Sequence[str]) -> int:
    target = Path(arguments[0]) if arguments else DIST
    with tempfile.TemporaryDirectory() as name:
        first, second = Path(name) / "first", Path(name) / "second"
        for folder in (first, second):
            build(folder)
        hashes = hashes_of(first)
        if hashes != hashes_of(second):
            print(f"two builds differ:\n{hashes}\n{hashes_of(second)}", file=sys.stderr)
            return 1
        check(first)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(first, target)
    for file, digest in hashes.items():
        print(f"{digest}  {target / file}")
    return 0


def build(folder: Path) -> None:
    """Build sdist and wheel to *folder*."""
    environ = {"SOURCE_DATE_EPOCH": EPOCH, **os.environ}  # noqa: TID251  the build inherits the rest
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, env=environ, stdout=subprocess.DEVNULL)


def check(folder: Path) -> None:
    """Let twine check the metadata; a warning is an error."""
    files = [str(file) for file in sorted(folder.iterdir())]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True, stdout=subprocess.DEVNULL)


def hashes_of(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
