"""Commands that write payloads: with the codec of the app, into its store or another."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from taskharbor.cli.app import load_app
from taskharbor.cli.discovery import search_app
from taskharbor.harbor import Harbor

if TYPE_CHECKING:
    from collections.abc import Iterator


def harbor_for(app: str | None) -> Harbor:
    """Return the harbor of *app*, or of the app that is found as a worker finds it; without either, a new one."""
    named = search_app() if app is None else app
    loaded = None if named is None else load_app(named)
    return Harbor() if loaded is None or loaded.harbor is None else loaded.harbor


@contextmanager
def open_harbor(app: str | None, url: str | None) -> Iterator[Harbor]:
    """Give that harbor for the length of a command, with the store at *url* if that is given."""
    with harbor_for(app) as harbor:
        if url is not None:
            harbor.use_store(url)
        yield harbor
