"""The tests of the shop. They need no worker; jobs run in `harness.drain`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine

from shop import orders
from shop.images import thumbnail
from shop.mail import confirm
from shop.web import app
from taskharbor.testing import Harness


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.chdir(tmp_path)  # for the mails
    monkeypatch.setattr(orders, "engine", create_engine(f"sqlite:///{tmp_path}/shop.db"))
    with TestClient(app) as client:
        yield client


def test_an_order_enqueues_a_mail_and_a_thumbnail(client: TestClient, harness: Harness) -> None:
    answer = client.post("/orders", json={"email": "ada@example.org", "picture": "nut.png"})

    assert answer.status_code == 201
    harness.assert_enqueued(confirm, 1, "ada@example.org")
    harness.assert_enqueued(thumbnail, "nut.png")
    assert [ran.status.value for ran in harness.drain()] == ["SUCCEEDED", "SUCCEEDED"]


def test_an_order_that_is_rolled_back_enqueues_nothing(client: TestClient, harness: Harness) -> None:
    answer = client.post("/orders", json={"email": "ada", "picture": "nut.png"})

    assert answer.status_code == 422
    harness.refute_enqueued(confirm)
    harness.refute_enqueued(thumbnail)
