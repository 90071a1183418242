from __future__ import annotations

import pytest

from taskharbor.cli.main import ExitCode, cli, run
from tests.support.cli_processes import python

SCRIPT = "import sys; sys.argv = ['taskharbor']; from taskharbor.cli import main; sys.exit(main())"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_for_both_names(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(cli, ["completion", shell])

    out = capsys.readouterr().out
    assert ended == ExitCode.OK
    assert f"_TASKHARBOR_COMPLETE={shell}_complete" in out
    assert f"_TH_COMPLETE={shell}_complete" in out


@pytest.mark.parametrize("words", [["completion"], ["completion", "csh"]])
def test_an_unknown_shell_is_rejected(words: list[str]) -> None:
    assert run(cli, words) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("taskharbor sched", {"schedules"}),
        ("taskharbor jobs ", {"cancel", "count", "list", "requeue", "reschedule", "show", "wait", "why"}),
        ("taskharbor jobs list --stat", {"--status"}),
        ("taskharbor jobs list --status proc", {"processing"}),
        ("taskharbor keys create ci --scope jobs:w", {"jobs:write"}),
    ],
)
def test_commands_options_and_choices_are_completed(typed: str, expected: set[str]) -> None:
    words = typed.split(" ")

    done = python(
        "-c",
        SCRIPT,
        _TASKHARBOR_COMPLETE="bash_complete",
        COMP_WORDS=typed,
        COMP_CWORD=str(len(words) - 1),
    )

    assert {line.rpartition(",")[2] for line in done.stdout.splitlines()} == expected
