"""Runs the worker of the last release on a schema that is migrated under it, and this code on the schema before.

The last release is a commit, which is read from git. On SQLite and on PostgreSQL: the old worker runs jobs of old and
new code before and after the migration; old code does not start on the new schema; new code does not start on a schema
that is more than one migration behind, and says what to do.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskharbor.cli.main import ExitCode
from taskharbor.drivers.sqlite.schema import MIGRATIONS
from tests.support.postgres import database
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
LAST_RELEASE: Final = "396dc2d"  # 0.1.0, which had no tag
LIMIT_SECONDS: Final = 60
APP: Final = """
from taskharbor import Harbor

harbor = Harbor()


@harbor.task
def greet(name: str) -> str:
    return f"hello {name}"
"""


@dataclass(frozen=True, slots=True)
class Release:
    """The command line of one release, in a folder with an app."""

    source: Path
    folder: Path
    url: str

    def run(self, *words: str, expect: ExitCode = ExitCode.OK) -> str:
        done = subprocess.run(
            self._command(*words),
            cwd=self.folder,
            env=self._environ(),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        if done.returncode != expect:
            raise RuntimeError(f"{words} ended with {done.returncode}, not {expect}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    @contextmanager
    def worker(self, log: str) -> Iterator[None]:
        file = self.folder / log
        with file.open("w") as stderr:
            process = subprocess.Popen(
                self._command("worker", "tasks.py"), cwd=self.folder, env=self._environ(), stderr=stderr
            )
        try:
            wait_until(lambda: "greet" in file.read_text() or process.poll() is not None, limit=LIMIT_SECONDS)
            yield
            process.terminate()
            if code := process.wait(LIMIT_SECONDS):
                raise RuntimeError(f"the worker ended with {code}: {file.read_text()}")
        finally:
            process.kill()
            process.wait()

    def greet(self, name: str) -> None:
        """Enqueue a job, and wait until a worker has run it."""
        self.run("enqueue", "greet", f"name={name}", "--wait")

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "taskharbor.cli", *words]

    def _environ(self) -> dict[str, str]:
        inherited = dict(os.environ)  # noqa: TID251  children inherit the rest
        return inherited | {"PYTHONPATH": str(self.source), "TASKHARBOR_URL": self.url}


def figures() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tasks.py").write_text(APP)
        _unpack(folder / "old")
        found: dict[str, object] = {"last release": LAST_RELEASE, "schema of this code": len(MIGRATIONS)}
        found["SQLite"] = _upgrade(folder, f"sqlite:///{folder}/jobs.db", migrates_at_open=True)
        with database(migrated=False) as url:
            found["PostgreSQL"] = _upgrade(folder, url, migrates_at_open=False)
        return found


def _unpack(target: Path) -> None:
    command = ["git", "archive", "--format=tar", LAST_RELEASE, "src"]
    archived = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archived)) as archive:
        archive.extractall(target, filter="data")


def _upgrade(folder: Path, url: str, *, migrates_at_open: bool) -> dict[str, object]:
    """Upgrade a store under a running worker of the last release, and return what was seen."""
    old, new = Release(folder / "old" / "src", folder, url), Release(ROOT / "src", folder, url)
    old.run("migrate", "up")
    with old.worker("old.log"):
        old.greet("before the migration, by the old code")
        if not migrates_at_open:
            refusal = new.run("enqueue", "greet", "name=early", expect=ExitCode.SCHEMA_OUT_OF_DATE)
            if "taskharbor migrate up" not in refusal:
                raise RuntimeError(f"the refusal names no remedy: {refusal}")
        new.run("migrate", "up")
        new.greet("after the migration, run by the old worker")
        old.run("enqueue", "greet", "name=late", expect=ExitCode.SCHEMA_OUT_OF_DATE)
        with new.worker("new.log"):
            new.greet("while both run")
    with new.worker("new.log"):
        new.greet("run by the new worker")
    return {
        "the old worker runs jobs after the migration": True,
        "old code that starts on the new schema exits with": int(ExitCode.SCHEMA_OUT_OF_DATE),
        "new code on the old schema": "migrates it at the start"
        if migrates_at_open
        else f"exits with {int(ExitCode.SCHEMA_OUT_OF_DATE)}",
        "old and new workers run side by side": True,
    }


if __name__ == "__main__":
    print(figures())
