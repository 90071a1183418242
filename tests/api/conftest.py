from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.api_rig import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.api_rig import ApiRig


@pytest.fixture
def site() -> Iterator[ApiRig]:
    with opened() as made:
        yield made
