"""The first hour: a web shop, first on SQLite, then on PostgreSQL, then with SQS."""

from __future__ import annotations

import json
import re
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.shell import Shell

ORDER: Final = {"email": "ada@example.org", "picture": "nut.png"}


def post(port: str, path: str, body: object) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def status_of(shop: Shell, job_id: str, url: str) -> str:
    shown = shop.run(f"taskharbor jobs show {job_id} --json --url {url}")
    assert shown.code == 0, shown
    found: str = json.loads(shown.out)["status"]
    return found


@pytest.mark.parametrize("setting", ["sqlite", "postgres", "sqs"])
def test_an_order_runs_its_jobs(setting: str, shop: Shell, empty_database: str, sqs: dict[str, str]) -> None:
    url = "sqlite:///shop.db" if setting == "sqlite" else empty_database
    shop.environ["DATABASE_URL"] = url
    with ExitStack() as running:
        if setting == "sqs":
            shop.environ |= sqs
            setup = shop.run("taskharbor sqs setup")
            assert setup.code == 0, setup
            assert "taskharbor-mail" in setup.out
            assert "taskharbor-images" in setup.out
            enqueuer = running.enter_context(shop.background("taskharbor enqueuer --migrate"))
            enqueuer.wait_for("mail")
        flags = {"sqlite": "", "postgres": "--migrate", "sqs": "--sqs --migrate"}[setting]
        worker = running.enter_context(shop.background(f"taskharbor worker {flags}"))
        worker.wait_for("thumbnail")
        web = running.enter_context(shop.background("uvicorn shop.web:app --port 0"))
        web.wait_for("running on")
        [port] = re.findall(r"running on http://127\.0\.0\.1:(\d+)", web.log())

        placed = post(port, "/orders", ORDER)

        wait_until((shop.folder / "outbox" / f"{placed['order']}.txt").exists)
        wait_until(lambda: status_of(shop, placed["mail"], url) == "SUCCEEDED")
        wait_until(lambda: status_of(shop, placed["picture"], url) == "SUCCEEDED")


def test_the_tests_of_the_shop_pass(shop: Shell) -> None:
    ran = shop.run("pytest -q -p no:randomly -p no:cacheprovider")

    assert ran.code == 0, ran
    assert "2 passed" in ran.out


def test_in_the_folder_of_an_app_no_command_needs_a_url(shop: Shell) -> None:
    enqueued = shop.run("taskharbor enqueue thumbnail picture=nut.png")
    assert enqueued.code == 0, enqueued

    listed = shop.run("taskharbor jobs list --json")
    assert listed.code == 0, listed
    assert [job["id"] for job in json.loads(listed.out)["jobs"]] == [enqueued.out.strip()]
    assert "images" in shop.run("taskharbor queues list").out
    assert shop.run("taskharbor migrate check").code == 0


def test_a_janitor_uses_the_store_of_the_app_in_its_folder(shop: Shell) -> None:
    with shop.background("taskharbor janitor --migrate") as janitor:
        janitor.wait_for("store sqlite:///shop.db")


def test_a_url_goes_before_the_store_of_the_app(shop: Shell) -> None:
    shop.run("taskharbor migrate up --url sqlite:///other.db")
    shop.environ["TASKHARBOR_URL"] = "sqlite:///other.db"
    shop.write("shop/jobs.py", "raise RuntimeError('the app is not loaded')")

    for command in ("taskharbor jobs list", "taskharbor jobs list --url sqlite:///other.db"):
        assert shop.run(command).code == 0
