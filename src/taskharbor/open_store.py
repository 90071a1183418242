"""The open store of a harbor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.unjoined import watched
from taskharbor.watcher import JobWatcher

if TYPE_CHECKING:
    from taskharbor.client import Client
    from taskharbor.core.clocks import Clock
    from taskharbor.drivers.base import Driver


class OpenStore:
    """An open store: its driver, client and watcher.

    *clock*: the time of new jobs, if it is not this machine's. *warns*: whether an enqueue beside an open transaction
    of the caller is reported.
    """

    def __init__(self, driver: Driver, client: Client, *, clock: Clock | None = None, warns: bool = False) -> None:
        self.driver = driver
        self.client = watched(client) if warns else client
        self.watcher = JobWatcher(driver.inspector)
        self.clock = clock

    def close(self) -> None:
        self.watcher.close()
        self.client.close()
        self.driver.close()
