"""The transport contract, run against widely used SQS emulators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.transport_contract import *  # noqa: F403  the contract is used by importing all of it
from tests.support.transport_subjects import Subject
from tools.sqs_endpoints import EMULATORS, running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=EMULATORS)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with running(EMULATORS[request.param]) as url:
        yield Subject(url)
