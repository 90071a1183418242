from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from tests.support.manual_worker import Rig
from tests.support.postgres import emptied
from tests.support.worker_rig import with_messages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.drivers.base import Driver

BY_MESSAGES: Final = "memory, by messages"


@pytest.fixture(params=["memory", "sqlite", "postgres", BY_MESSAGES])
def driver(request: pytest.FixtureRequest, tmp_path: Path, new_file: Path) -> Iterator[Driver]:
    """Yield each store, and one whose jobs arrive by messages: a worker behaves the same on all of them."""
    if request.param == BY_MESSAGES:
        with closing(MemoryDriver()) as memory, with_messages(memory):
            yield memory
        return
    with closing(_open(request.param, tmp_path, new_file)) as opened:
        yield opened


@pytest.fixture(scope="session")
def new_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file that has only the schema: copying it is many times faster than creating it."""
    file = tmp_path_factory.mktemp("new") / "jobs.db"
    SqliteDriver(file, synchronous="NORMAL").close()
    return file


def _open(name: str, folder: Path, new_file: Path) -> Driver:
    match name:
        case "memory":
            return MemoryDriver()
        case "sqlite":
            return SqliteDriver(shutil.copy(new_file, folder / "jobs.db"), synchronous="NORMAL")
        case _:
            return PostgresDriver(emptied())


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.may_end.set()
    made.runtime.close()
