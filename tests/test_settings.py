from __future__ import annotations

import pytest

from taskharbor.core.errors import UsageError
from taskharbor.settings import Settings


def test_the_url_comes_from_the_environment() -> None:
    settings = Settings.from_env({"TASKHARBOR_URL": "memory://"})

    assert settings.url == "memory://"
    assert settings.require_url() == "memory://"


@pytest.mark.parametrize("environ", [{}, {"TASKHARBOR_URL": "", "NO_COLOR": ""}])
def test_an_empty_variable_says_no_more_than_a_missing_one(environ: dict[str, str]) -> None:
    settings = Settings.from_env(environ)

    assert settings == Settings(url=None, no_color=False)


def test_any_value_of_no_color_turns_colour_off() -> None:
    settings = Settings.from_env({"NO_COLOR": "0"})

    assert settings.no_color


def test_the_environment_of_the_process_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHARBOR_URL", "memory://")

    assert Settings.from_env().url == "memory://"


def test_a_missing_url_is_answered_with_the_forms_it_can_take_and_where_to_put_it() -> None:
    with pytest.raises(UsageError) as caught:
        Settings().require_url()

    text = str(caught.value)
    assert [part for part in ("postgresql://", "sqlite:///jobs.db", "memory://") if part not in text] == []
    assert [part for part in ("--url", "TASKHARBOR_URL") if part not in text] == []


def test_settings_do_not_show_the_url_which_may_hold_a_password() -> None:
    settings = Settings(url="postgresql://app:hunter2@db/app")

    assert "hunter2" not in repr(settings)
