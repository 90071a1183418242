"""``manage.py taskharbor``: the command line of TaskHarbor, on the database of the project."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from django.core.management.base import BaseCommand

from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.integrations.django.stores import aliases
from taskharbor.settings import export_app

BACKEND: Final = "--backend"


class Command(BaseCommand):  # type: ignore[misc]  # Django has no annotations
    """Runs a command of TaskHarbor: ``manage.py taskharbor [--backend ALIAS] worker …``."""

    help = "Run a command of TaskHarbor on the project's database, such as 'worker'. See 'taskharbor --help'."
    requires_system_checks: tuple[str, ...] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass all words on, also those that begin with a hyphen."""
        sys.exit(self._run(argv[2:]))

    def handle(self, *words: str, **_: Any) -> None:
        """Run a command for ``call_command("taskharbor", "migrate", "check")``. A failure ends the process."""
        if code := self._run([*words]):
            sys.exit(code)

    def add_arguments(self, parser: Any) -> None:
        """Accept any words: TaskHarbor parses them."""
        parser.add_argument("words", nargs="*")

    def _run(self, words: list[str]) -> int:
        alias, words = _split_backend(words)
        if alias not in (known := aliases()):
            fix = f"it has {', '.join(known)}" if known else "the docs of TaskHarbor for Django show its settings"
            self.stderr.write(f"error: TASKS has no backend of TaskHarbor named {alias!r}; {fix}")
            return ExitCode.USAGE
        settings = os.environ["DJANGO_SETTINGS_MODULE"]  # noqa: TID251  manage.py has set it; children need it, too
        export_app(f"taskharbor.integrations.django.app:{alias}", DJANGO_SETTINGS_MODULE=settings)
        return run(cli, words, program="manage.py taskharbor")


def _split_backend(words: list[str]) -> tuple[str, list[str]]:
    """Return the alias after --backend, by default that of Django, and the words of the command."""
    match words:
        case [option, alias, *command] if option == BACKEND:
            return alias, command
        case [option, *command] if option.startswith(f"{BACKEND}="):
            return option.removeprefix(f"{BACKEND}="), command
        case _:
            return "default", words
