"""A store that is open, and those who work on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.awaiting import JobWatcher

if TYPE_CHECKING:
    from taskharbor.client import Client
    from taskharbor.drivers.base import Driver


class OpenStore:
    """What a harbor has open: the driver, who accepts jobs, and who waits for them. *joins*: users' transactions."""

    def __init__(self, driver: Driver, client: Client, *, joins: bool = True) -> None:
        self.driver = driver
        self.client = client
        self.watcher = JobWatcher(driver.inspector)
        self.joins = joins

    def close(self) -> None:
        self.watcher.close()
        self.client.close()
        self.driver.close()
