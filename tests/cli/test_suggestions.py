from __future__ import annotations

import pytest

from taskharbor.cli.main import ExitCode, cli, run


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("migrat", "no such command 'migrat'; did you mean 'migrate'?"),
        ("verison --json", "no such command 'verison'; did you mean 'version'?"),
        ("migrate stauts", "no such command 'stauts'; did you mean 'status'?"),
        ("version --jsn", "no such option '--jsn'; did you mean '--json'?"),
        ("migrate up --ur=memory://", "no such option '--ur'; did you mean '--url'?"),
        ("--versoin", "no such option '--versoin'; did you mean '--version'?"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(
    typed: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(cli, typed.split())

    assert ended == ExitCode.USAGE
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["zzz", "--zzz", "version --zzz", "migrate zzz", "version zzz"])
def test_a_word_like_no_other_is_answered_with_where_to_look(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(cli, typed.split())

    err = capsys.readouterr().err
    assert ended == ExitCode.USAGE
    assert "zzz" in err
    assert "; see '" in err
    assert err.endswith(" --help'\n")


def test_an_option_of_the_root_given_too_late_is_sent_to_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(cli, ["migrate", "up", "--debug"])

    assert ended == ExitCode.USAGE
    assert "no such option '--debug'; put it before the command: '" in capsys.readouterr().err
