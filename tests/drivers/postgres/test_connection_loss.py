"""Connections of the PostgreSQL driver that are cut at every exchange of every call."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.postgres import PostgresDriver
from tests.support.driver_calls import VERBS
from tests.support.postgres import emptied, empty
from tests.support.tcp_proxy import Cut, Proxy

if TYPE_CHECKING:
    from tests.support.driver_calls import VerbCase


@pytest.mark.parametrize("verb", VERBS)
def test_a_connection_cut_at_any_exchange_loses_and_repeats_nothing(verb: str) -> None:
    cuts: Counter[Cut] = Counter()
    url = emptied()
    with closing(PostgresDriver(url)) as direct, Proxy(url) as proxy, closing(PostgresDriver(proxy.url)) as driver:
        driver._notifier.notify = lambda topics: None  # type: ignore[method-assign]  # noqa: ARG005, SLF001  it would add exchanges
        for when in Cut:
            while call_and_cut(VERBS[verb](direct), driver, proxy, when=when, exchange=cuts[when] + 1):
                cuts[when] += 1
                empty(url)
            empty(url)

    assert all(cuts[when] > 0 for when in Cut)


def call_and_cut(case: VerbCase, driver: PostgresDriver, proxy: Proxy, *, when: Cut, exchange: int) -> bool:
    """Cut the connection at this exchange of the call, and check the result; return False if the call has fewer."""
    for connections in (driver._connections, driver._heartbeat_pool):  # noqa: SLF001  new connections have no prepared statements
        connections._drop_idle()  # noqa: SLF001  as above
        connections.fetch("SELECT 1")
    proxy.cut(when, exchange=exchange)
    try:
        answer = case.call(driver)
    except StoreUnavailable:
        assert proxy.has_cut
        assert not case.is_answered
        answer = None
    case.check(answer)
    return proxy.has_cut
