"""What a service does before it starts: wait for its store, migrate it if asked, and check its schema."""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import click

from taskharbor.cli.errors import StoreAway
from taskharbor.cli.store import check_shared, url_of
from taskharbor.core.errors import SchemaOutOfDate, StoreRefused, StoreUnavailable
from taskharbor.drivers.connect import mask_url
from taskharbor.drivers.migrate import RUN_MIGRATIONS
from taskharbor.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.drivers.base import Driver
    from taskharbor.harbor import Harbor

RETRY_SECONDS: Final = 0.5


def prepare_store(harbor: Harbor, service: str, *, migrate: bool, wait: bool) -> None:
    """Return when the store of *harbor* can be used. Create it if it is a file.

    Raises `StoreNotShared`; `SchemaOutOfDate`; `StoreRefused` if waiting cannot help; and `StoreAway` if the store
    is unavailable, unless *wait* is true.
    """
    check_shared(url_of(harbor))
    log = logging.getLogger(f"taskharbor.{service}")
    is_waiting = False
    with _signals_exit() if wait else nullcontext():
        while True:
            try:
                _prepare(harbor.driver, log, migrate=migrate)
            except StoreRefused:
                raise
            except StoreUnavailable as error:
                if not wait:
                    raise StoreAway(error.reason) from error
                if not is_waiting:
                    log.warning("store unavailable; waiting for it: %s", error.reason)
                    is_waiting = True
                threading.Event().wait(RETRY_SECONDS)
            else:
                break
    if is_waiting:
        log.info("store available; starting")


def _prepare(driver: Driver, log: logging.Logger, *, migrate: bool) -> None:
    # Only some drivers have it: SQLite migrates its file when it is opened.
    apply_migrations: Callable[[], list[str]] | None = getattr(driver, "migrate", None)
    if migrate and apply_migrations is not None:
        for name in apply_migrations():
            log.info("applied migration %s", name)
    try:
        driver.inspector.now()
    except SchemaOutOfDate as error:
        if error.remedy != RUN_MIGRATIONS:
            raise
        raise SchemaOutOfDate(error.found, error.wanted, f"{RUN_MIGRATIONS}, or pass --migrate") from error


@contextmanager
def _signals_exit() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the process with 0, as they end a service that runs.

    SIGTERM has no default handler in process 1, such as in a container.
    """

    def leave(_number: int, _frame: Any) -> None:
        raise click.exceptions.Exit(0)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def store_name(harbor: Harbor) -> str:
    """Return the URL of the harbor's store without its password, or the class of its driver."""
    source = harbor.source or Settings.from_env().require_url()
    return mask_url(source) if isinstance(source, str) else type(source).__name__
