"""The transport contract, on moto and on TaskHarbor's own endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.transport_contract import *  # noqa: F403  the contract is used by importing all of it
from tests.support.transport_subjects import Subject, moto, ours

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=[moto, ours], ids=["moto", "ours"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with request.param() as started:
        yield started
