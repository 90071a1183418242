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
def test_a_misspelled_command_or_option_suggests_the_nearest(
    typed: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(cli, typed.split())

    assert ended == ExitCode.USAGE
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["zzz", "--zzz", "version --zzz", "migrate zzz", "version zzz"])
def test_an_unknown_command_or_option_points_to_the_help(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(cli, typed.split())

    err = capsys.readouterr().err
    assert ended == ExitCode.USAGE
    assert "zzz" in err
    assert "; see '" in err
    assert err.endswith(" --help'\n")


def test_a_root_option_after_the_command_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(cli, ["migrate", "up", "--debug"])

    assert ended == ExitCode.USAGE
    assert "no such option '--debug'; put it before the command: '" in capsys.readouterr().err
