"""A shop that uses Django under test, in a separate process because Django can be configured only once per process."""

from __future__ import annotations

import json
import subprocess
import sys
import unittest
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskharbor import Harbor
from taskharbor.core.errors import UsageError
from tests.support.shops import Regret

if TYPE_CHECKING:
    from taskharbor.testing import Harness

ROOT: Final = Path(__file__).resolve().parent.parent.parent


def facts_of(database: dict[str, Any]) -> dict[str, Any]:
    """Return what the harness sees of the shop's transactions, outside of any other and in those of a TestCase."""
    command = [sys.executable, "-m", "tests.support.django_harness", json.dumps(database)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def main(database: str) -> None:
    from django.conf import settings  # noqa: PLC0415  only this process configures it

    settings.configure(DATABASES={"default": json.loads(database)}, USE_TZ=True)

    from django.test import TestCase  # noqa: PLC0415  it needs the settings

    facts = {"alone": _facts()}

    class ShopTest(TestCase):  # type: ignore[misc]  # Django has no annotations
        def test_the_shop(self) -> None:
            facts["in a TestCase"] = _facts()

        def test_the_shop_again(self) -> None:
            facts["in the next test"] = _facts()

    suite = unittest.defaultTestLoader.loadTestsFromTestCase(ShopTest)
    assert unittest.TextTestRunner().run(suite).wasSuccessful()
    sys.stdout.write(json.dumps(facts))


def _facts() -> dict[str, Any]:
    from django.db import connection, transaction  # noqa: PLC0415  it needs the settings

    harbor = Harbor("memory://")

    @harbor.task
    def ship(order: int) -> None: ...

    def enqueue(order: int) -> None:
        ship.using(connection=connection).enqueue(order)

    with harbor.testing() as harness:
        with transaction.atomic():
            enqueue(1)
            before = _orders(harness)
        after = _orders(harness)
        with suppress(Regret), transaction.atomic():
            enqueue(2)
            raise Regret
        with transaction.atomic():
            enqueue(3)
            with suppress(Regret), transaction.atomic():
                enqueue(4)
                raise Regret
            with transaction.atomic():
                enqueue(5)
            inside = _orders(harness)
        facts = {"commit": [before, after], "nested": [inside, _orders(harness)]}
        try:
            enqueue(6)
        except UsageError as error:
            return facts | {"outside": str(error)}
        return facts


def _orders(harness: Harness) -> list[int]:
    return [job.data["order"] for job in harness.enqueued()]


if __name__ == "__main__":
    main(*sys.argv[1:])
