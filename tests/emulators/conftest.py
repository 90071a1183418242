from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.transport_subjects import one_reading

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.register_assert_rewrite("tests.support.transport_contract")


@pytest.fixture(scope="session", autouse=True)
def quick_clients() -> Iterator[None]:
    with one_reading():
        yield
