"""How long finished jobs are kept: defaults, limits, settings, and who decides."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import Harbor, MemoryDriver, Worker
from taskharbor.core.errors import UsageError
from taskharbor.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

DAY = timedelta(days=1)


def test_arguments_win_over_settings_and_settings_over_defaults() -> None:
    settings = Settings.from_env({"TASKHARBOR_KEEP": "2d", "TASKHARBOR_KEEP_DEAD": "1.5h"})

    assert Settings().retention(None, None) == {"keep": 7 * DAY, "keep_dead": None}
    assert settings.retention(None, None) == {"keep": 2 * DAY, "keep_dead": timedelta(minutes=90)}
    assert settings.retention(60, DAY) == {"keep": timedelta(minutes=1), "keep_dead": DAY}


@pytest.mark.parametrize("keep", [0, -1, timedelta(0), timedelta(milliseconds=1), timedelta(days=40_000)])
@pytest.mark.parametrize("name", ["keep", "keep_dead"])
@pytest.mark.parametrize("make", [Harbor, Worker])
def test_a_retention_out_of_range_is_refused(make: Callable[..., Any], name: str, keep: Any) -> None:
    with pytest.raises(UsageError, match=rf"^{name} is .*: must "):
        make(MemoryDriver(), **{name: keep})


def test_a_setting_that_is_no_duration_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHARBOR_KEEP_DEAD", "forever")

    with pytest.raises(UsageError) as caught:
        Harbor(MemoryDriver())

    assert str(caught.value) == (
        "TASKHARBOR_KEEP_DEAD is 'forever': write a duration with its unit, such as 500ms, 25s or 7d"
    )
