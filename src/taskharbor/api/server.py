"""The API as a process of its own."""

from __future__ import annotations

import logging
import os
import signal
import socket
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import uvicorn

from taskharbor.api.app import close_streams, create_app
from taskharbor.api.connections import BoundedProtocol, ConnectionLimits, max_connections
from taskharbor.api.routing import is_local
from taskharbor.api_keys import has_valid_key
from taskharbor.core.codec import CODEC_SETTING, check_codec, codec_name
from taskharbor.core.errors import AddressUnavailable, ApiKeyRequired
from taskharbor.service import SIGNAL_EXIT_BASE, tuned_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from fastapi import FastAPI

    from taskharbor.api.store import ApiBackend

_LOG: Final = logging.getLogger("taskharbor.api")
SHUTDOWN_GRACE_SECONDS: Final = 10  # seconds that requests under way have once a signal came
KEEP_ALIVE_SECONDS: Final = 75  # seconds after which an idle connection is closed
BACKLOG: Final = 2_048
ACCEPT_BATCH: Final = 8
"""Connections that the event loop accepts at once, before any is counted: so many may be open beyond the bound."""


def serve(harbor: ApiBackend, *, host: str, port: int) -> None:
    """Answer requests until SIGTERM or SIGINT; those under way may end.

    Where the store has a key that is good, every request needs one. Without any, only this very
    machine is answered: everybody on it may do everything, for development, until the first key is made.
    """
    check_codec(harbor.driver.inspector.settings().get(CODEC_SETTING, codec_name(harbor.codec)), harbor.codec)
    has_keys = has_valid_key(harbor.driver.inspector)
    if not has_keys and not all(map(is_local, resolve_host(host))):
        raise ApiKeyRequired(host)
    app = create_app(harbor, needs_keys=has_keys or None, only_local_hosts=not has_keys)
    with closing(open_socket(host, port)) as sock:
        place, number, *_ = sock.getsockname()
        _LOG.info("the API listens on http://%s:%s", f"[{place}]" if ":" in place else place, number)
        if not has_keys:
            _LOG.warning("there is no API key: everybody on this machine may do everything")
        ApiServer(app).run(sockets=[sock])
    _LOG.info("the API stopped")


def resolve_host(host: str) -> set[str]:
    """Return the addresses that *host* stands for; itself, where nobody knows it."""
    try:
        return {str(each[4][0]) for each in socket.getaddrinfo(host or "0.0.0.0", None)}  # noqa: S104  no name means all of them
    except OSError:
        return {host}


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on that address."""
    # Named as TCP: asyncio turns Nagle's algorithm off for no other, and each answer would wait 40 ms for an ACK.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        sock.close()
        raise AddressUnavailable(host, port, str(error)) from error
    return sock


class ApiServer(uvicorn.Server):
    """Ends streams before it waits for requests to end, and then comes back, so that the store can be closed."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(BoundedProtocol, bounds=ConnectionLimits(max_connections())),  # type: ignore[arg-type]
                backlog=ACCEPT_BATCH,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_GRACE_SECONDS,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hear SIGTERM and SIGINT while inside. Uvicorn's own would raise them once more at the end."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  as uvicorn has it
        if self.should_exit:
            os._exit(SIGNAL_EXIT_BASE + sig)  # a second signal ends the process now
        self.should_exit = True

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        # To look again and again through all that there is, for what pages of jobs might leave behind, kept
        # everybody waiting for 50 ms, and took a tenth of each page's time besides.
        with tuned_interpreter():
            super().run(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(BACKLOG)  # asyncio takes one number for both, and has set the smaller one

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        close_streams(self._app)
        await super().shutdown(sockets)
