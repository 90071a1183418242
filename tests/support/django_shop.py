"""A shop that uses Django, in a separate process because Django can be configured only once per process."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from taskharbor.core.errors import UsageError
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.drivers.connect import connect
from taskharbor.drivers.unwrap import unwrap
from taskharbor.testing.conformance.subject import new_job
from tests.support.joined_stores import Store
from tests.support.shops import COUNT, ORDER, Regret

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parent.parent.parent
DEADLINE: Final = timedelta(seconds=5)


def facts_of(url: str, database: dict[str, Any]) -> dict[str, Any]:
    """Run every scenario of a shop with its orders in *database*, and return the results."""
    command = [sys.executable, "-m", "tests.support.django_shop", url, json.dumps(database)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def django_address(url: str) -> dict[str, Any]:
    """Return the settings of Django for the PostgreSQL database at *url*."""
    parts = urlsplit(url)
    [socket] = parse_qs(parts.query).get("host", [parts.hostname or ""])
    return {"NAME": parts.path[1:], "USER": parts.username, "HOST": socket, "PORT": str(parts.port or "")}


def main(url: str, database: str) -> None:
    from django.conf import settings  # noqa: PLC0415  only this process configures it

    settings.configure(
        DATABASES={"default": json.loads(database)},
        CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        USE_TZ=True,
    )
    with closing(connect(url)) as driver:
        shop = DjangoShop(Store(driver, url, orders=orders))
        facts = {each.__name__: each() for each in (shop.commits, shop.rolls_back, shop.regrets, shop.settles)}
        facts |= {each.__name__: each() for each in (shop.notifies, shop.is_outside, shop.gives_its_cache)}
    sys.stdout.write(json.dumps(facts))


def orders() -> int:
    from django.db import connection  # noqa: PLC0415  as above

    with connection.cursor() as cursor:
        cursor.execute(COUNT)
        return int(cursor.fetchone()[0])


class DjangoShop:
    def __init__(self, store: Store) -> None:
        from django.db import connection, transaction  # noqa: PLC0415  as above

        self._store, self._connection, self._atomic = store, connection, transaction.atomic

    def commits(self) -> Any:
        job = new_job()
        with self._atomic():
            self._order()
            self._joined().insert([job])
            before = self._store.has(job)
        return before, self._store.has(job), orders()

    def rolls_back(self) -> Any:
        job, before = new_job(), orders()
        with suppress(Regret), self._atomic():
            self._order()
            self._joined().insert([job])
            raise Regret
        return self._store.has(job), orders() - before

    def regrets(self) -> Any:
        kept, lost = new_job(), new_job()
        with self._atomic():
            self._joined().insert([kept])
            with suppress(Regret), self._atomic():
                self._joined().insert([lost])
                raise Regret
        return self._store.has(kept), self._store.has(lost)

    def settles(self) -> Any:
        claim = self._store.take()
        with self._atomic():
            self._joined().settle([Settlement(claim.lease, Outcome.ack(b"1"))])
            before = self._store.status(claim)
        return before, self._store.status(claim)

    def notifies(self) -> Any:
        # A separate queue: notifications of the earlier scenarios may still arrive.
        with closing(self._store.driver.listen(["notified"])) as listener:
            with self._atomic():
                self._joined().insert([new_job(queue="notified")])
                before = bool(listener.wait(timedelta(0)))
            return before, bool(listener.wait(DEADLINE))

    def is_outside(self) -> Any:
        return _error(self._joined)

    def gives_its_cache(self) -> Any:
        from django.core.cache import cache  # noqa: PLC0415  as above

        return _error(lambda: unwrap(cache))

    def _joined(self) -> Any:
        return self._store.driver.join(unwrap(self._connection))

    def _order(self) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(ORDER)


def _error(call: Callable[[], object]) -> str:
    try:
        return repr(call())
    except UsageError as error:
        return str(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
