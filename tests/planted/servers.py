"""One PostgreSQL server shared by the processes of all planted bugs, which would otherwise start one each."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED: Final = "TASKHARBOR_TEST_SERVER"
"""As in `tests.support.postgres`, which imports TaskHarbor and so must not be imported here before the forks."""
STOP_SECONDS: Final = 60.0


@contextmanager
def shared_server() -> Iterator[None]:
    """Run a server for the processes forked inside the block."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    keeper = fork.Process(target=_keep, args=(theirs,))
    keeper.start()
    try:
        os.environ[SHARED] = ours.recv()  # noqa: TID251  children inherit it
        yield
    finally:
        os.environ.pop(SHARED, None)  # noqa: TID251  as above
        ours.send(None)
        keeper.join(STOP_SECONDS)


def _keep(pipe: Any) -> None:
    postgres: Any = importlib.import_module("tests.support.postgres")
    server = postgres.server()
    try:
        pipe.send(f"{server._port}/{postgres._template(postgres.NEWEST)}")
        pipe.recv()
    finally:
        server.stop()
