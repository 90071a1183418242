from __future__ import annotations

import pytest

from taskharbor.core.errors import UsageError
from taskharbor.settings import Settings, child_environment


def test_the_url_comes_from_the_environment() -> None:
    settings = Settings.from_env({"TASKHARBOR_URL": "memory://"})

    assert settings.url == "memory://"
    assert settings.require_url() == "memory://"


@pytest.mark.parametrize("environ", [{}, {"TASKHARBOR_URL": "", "NO_COLOR": ""}])
def test_an_empty_variable_counts_as_unset(environ: dict[str, str]) -> None:
    settings = Settings.from_env(environ)

    assert settings == Settings(url=None, no_color=False)


def test_any_value_of_no_color_disables_color() -> None:
    settings = Settings.from_env({"NO_COLOR": "0"})

    assert settings.no_color


def test_the_sqs_prefix_comes_from_the_environment() -> None:
    assert Settings.from_env({"TASKHARBOR_SQS_PREFIX": "staging-"}).sqs_prefix == "staging-"


@pytest.mark.parametrize(
    "environ",
    [{"AWS_REGION": "a"}, {"AWS_DEFAULT_REGION": "a"}, {"AWS_REGION": "a", "AWS_DEFAULT_REGION": "b"}],
)
def test_the_region_comes_from_either_of_two_variables(environ: dict[str, str]) -> None:
    assert Settings.from_env(environ).aws_region == "a"


def test_the_environment_is_read_on_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHARBOR_URL", "memory://")

    assert Settings.from_env().url == "memory://"


def test_a_missing_url_raises_an_error_with_examples() -> None:
    with pytest.raises(UsageError) as caught:
        Settings().require_url()

    text = str(caught.value)
    assert [part for part in ("postgresql://", "sqlite:///jobs.db") if part not in text] == []
    assert [part for part in ("--url", "TASKHARBOR_URL") if part not in text] == []


def test_a_child_environment_adds_the_store_url() -> None:
    environ = child_environment(url="memory://", environ={"TASKHARBOR_URL": "sqlite:///jobs.db", "PATH": "bin"})

    assert environ == {"TASKHARBOR_URL": "memory://", "PATH": "bin"}


def test_settings_do_not_show_the_url_which_may_hold_a_password() -> None:
    settings = Settings(url="postgresql://app:hunter2@db/app")

    assert "hunter2" not in repr(settings)


def test_the_app_comes_from_the_environment() -> None:
    assert Settings.from_env({"TASKHARBOR_APP": "shop.jobs:harbor"}).app == "shop.jobs:harbor"


def test_a_flag_that_is_not_a_boolean_is_refused() -> None:
    assert Settings.from_env({"TASKHARBOR_DEV": "on"}).is_development
    with pytest.raises(UsageError, match="TASKHARBOR_DEV"):
        _ = Settings.from_env({"TASKHARBOR_DEV": "perhaps"}).is_development


def test_a_child_of_the_development_server_warns_unless_it_is_off() -> None:
    assert child_environment(url=None, development=True, environ={})["TASKHARBOR_DEV"] == "1"
    assert child_environment(url=None, development=True, environ={"TASKHARBOR_DEV": "0"})["TASKHARBOR_DEV"] == "0"
    assert "TASKHARBOR_DEV" not in child_environment(url=None, environ={})
