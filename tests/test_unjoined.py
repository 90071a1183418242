"""The warning of jobs that are enqueued beside an open transaction."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from taskharbor import Harbor
from taskharbor.unjoined import UnjoinedTransaction
from tests.support.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with Session(engine) as opened:
        yield opened
    engine.dispose()


def harbor_with_task(store: str = "memory://") -> tuple[Harbor, Any]:
    harbor = Harbor(store)
    return harbor, harbor.task(_ship)


def _ship(order: int) -> None: ...


def test_an_enqueue_beside_an_open_session_is_reported(session: Session) -> None:
    harbor, ship = harbor_with_task()
    session.execute(text("SELECT 1"))

    with harbor.testing(), pytest.warns(UnjoinedTransaction, match=r"using\(connection=session\)") as seen:
        ship.enqueue(1)

    assert seen[0].filename == __file__


def test_a_session_in_an_attribute_of_self_is_found(session: Session) -> None:
    harbor, ship = harbor_with_task()

    class Service:
        def __init__(self) -> None:
            self.opened = session

        def place(self) -> None:
            harbor.enqueue_many([ship.call(1)])

    session.execute(text("SELECT 1"))
    service = Service()
    with harbor.testing(), pytest.warns(UnjoinedTransaction):
        service.place()


def test_an_enqueue_inside_the_session_is_not_reported(session: Session) -> None:
    harbor, ship = harbor_with_task()
    session.execute(text("SELECT 1"))

    with harbor.testing(), warnings.catch_warnings():
        warnings.simplefilter("error")
        ship.using(connection=session).enqueue(1)


def test_a_session_without_a_transaction_is_not_reported(session: Session) -> None:
    harbor, ship = harbor_with_task()
    assert not session.in_transaction()

    with harbor.testing(), warnings.catch_warnings():
        warnings.simplefilter("error")
        ship.enqueue(1)


def test_an_async_session_of_an_awaiting_caller_is_found() -> None:
    harbor, ship = harbor_with_task()
    engine = create_async_engine(emptied().replace("postgresql://", "postgresql+asyncpg://"))

    async def place() -> None:
        await ship.aenqueue(1)

    async def work() -> None:
        async with AsyncSession(engine) as session:
            await session.execute(text("SELECT 1"))
            await place()
        await engine.dispose()

    with harbor.testing(), pytest.warns(UnjoinedTransaction, match="AsyncSession"):
        asyncio.run(work())


@pytest.mark.parametrize(("value", "count"), [("1", 1), ("", 0)])
def test_only_development_reports(value: str, count: int, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHARBOR_DEV", value)
    harbor, ship = harbor_with_task()
    session.execute(text("SELECT 1"))

    with harbor, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ship.enqueue(1)

    assert len(seen) == count
