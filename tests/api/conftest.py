from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.api.site import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.api.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    with opened() as made:
        yield made
