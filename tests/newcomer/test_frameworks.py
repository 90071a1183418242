"""The pages about web frameworks: their files and commands, in an empty folder, as a new user copies them."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import django
import pytest

from tests.support.tutorial import on_free_ports
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.shell import Running, Shell

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
SERVICES: Final = {"taskharbor worker": "lease", "flask run": "Running on", "uvicorn": "Uvicorn running on"}
"""Commands that run until they are stopped, and what they log once they have started."""
BACKPORT: Final = django.VERSION < (6,)


@pytest.mark.skipif(shutil.which("curl") is None, reason="NOT RUN: this machine has no curl")
@pytest.mark.parametrize("page", ["django", "fastapi", "flask"])
def test_the_commands_of_a_page_work_in_an_empty_folder(page: str, shell: Shell) -> None:
    began = time.monotonic()
    text = on_free_ports((DOCS / f"{page}.md").read_text("utf-8"))

    with ExitStack() as stack:
        services: list[Running] = []
        for language, block in re.findall(r"```(python|console)\n(.*?)```", text, re.DOTALL):
            if language == "python":
                write_file(shell, block)
                continue
            for command, expected in commands_of(block):
                started = next((log for words, log in SERVICES.items() if words in command), None)
                if started is None:
                    run(shell, command, expected)
                    continue
                services.append(stack.enter_context(shell.background(command)))
                services[-1].wait_for(started)

    print(f"{page}: {time.monotonic() - began:.1f} s")  # noqa: T201  shown by pytest -s


def write_file(shell: Shell, block: str) -> None:
    """Write a block to the file that its first line names, or append it there."""
    first, _, rest = block.partition("\n")
    name, _, is_appended = first.removeprefix("# ").partition(", at the end")[0], "", ", at the end" in first
    if BACKPORT:
        rest = rest.replace("from django.tasks import task  # Django 5.2: ", "")
        rest = rest.replace("INSTALLED_APPS += [", 'INSTALLED_APPS += ["django_tasks", ')
    before = (shell.folder / name).read_text("utf-8") if is_appended else ""
    shell.write(name, f"{before}\n{rest}")


def commands_of(block: str) -> list[tuple[str, str]]:
    """Return the commands of a block, and what each must print."""
    return [
        (command, "\n".join(output))
        for command, *output in (
            each.strip("\n").split("\n") for each in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
        )
    ]


def run(shell: Shell, command: str, expected: str) -> None:
    """Run a command until it prints what is expected, for example since a job must end first."""
    if command.startswith("pip install"):
        return  # it is installed

    def is_as_expected() -> bool:
        ran = shell.run(command)
        if expected:
            return expected in ran.out + ran.err
        assert ran.code == 0, ran
        return True

    wait_until(is_as_expected, limit=30)
