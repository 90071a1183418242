"""Follows a tutorial as a reader does: saves its files, types its commands, and compares what they print.

- A block whose first line is a comment with the name of a file is saved as that file.
- In a block of ``console``, a line that begins with ``$`` is typed. The lines below it must be printed, except that
  ids, durations and versions may differ. A command whose output shows ``error:`` must fail, others must not.
- A service, and a command that ends with ``&``, runs until the end of the page, or until a line ``^C``, which stops the
  worker.
"""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.shell import Running, Shell

LIMIT_SECONDS: Final = 60
SERVICE: Final = re.compile(r"taskharbor (worker|api|enqueuer|janitor)( |$)")
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FILE: Final = re.compile(r"# ([\w/-]+\.(?:py|toml))\n")
_PORT: Final = re.compile(r"\b(?:80[5-9]\d|5057)\b")


def follow(page: str, shell: Shell, *, instead: Mapping[str, str]) -> list[str]:
    """Follow the tutorial *page* in *shell*, with some texts replaced by others, and return the commands typed."""
    for old, new in instead.items():
        page = page.replace(old, new)
    page = on_free_ports(page)
    with ExitStack() as stack:
        reader = Reader(shell, stack)
        for language, block in _BLOCK.findall(page):
            if named := _FILE.match(block):
                shell.write(named[1], block[named.end() :])
            elif language == "console":
                reader.type(block)
            else:
                raise AssertionError(f"a block of {language} is neither a file nor commands:\n{block}")
        return reader.typed


class Reader:
    def __init__(self, shell: Shell, stack: ExitStack) -> None:
        self._shell, self._stack = shell, stack
        self._worker: Running | None = None
        self.typed: list[str] = []

    def type(self, block: str) -> None:
        for part in re.split(r"^(?=\$ |\^C)", block, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            if line == "^C":
                self._interrupt(shown)
            else:
                self._command(line.removeprefix("$ "), shown)

    def _command(self, line: str, shown: str) -> None:
        self.typed.append(line)
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self._shell.environ[name] = value
        elif SERVICE.match(line) or line.endswith("&"):
            self._start(line.removesuffix(" &"), shown)
        else:
            ran = self._shell.run(line)
            assert (ran.code != 0) == ("error:" in shown), ran
            missing = missing_lines(shown, ran.out + ran.err)
            assert not missing, f"{line} did not print {missing}, but:\n{ran}"

    def _start(self, line: str, shown: str) -> None:
        running = self._stack.enter_context(self._shell.background(line))
        if line.startswith("taskharbor worker"):
            self._worker = running
            shown = f"started: taskharbor\n{shown}"
        wait_until(lambda: running.is_over or not missing_lines(shown, running.log()), limit=LIMIT_SECONDS)
        assert not running.is_over, running.log()

    def _interrupt(self, shown: str) -> None:
        assert self._worker is not None
        assert self._worker.stop() == 0
        assert missing_lines(shown, self._worker.log()) == []


def missing_lines(shown: str, printed: str) -> list[str]:
    """Return the lines that a page shows and that were not printed, compared without ids, durations and versions."""
    found = _form_of(printed)
    return [line for line in shown.splitlines() if _form_of(line) not in found]


def _form_of(text: str) -> str:
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r"worker \S+:\d+:[0-9a-f]+", "worker ID", text)
    text = re.sub(r"(postgres(?:ql)?|sqlite)://\S*?(?=;|\s|$)", "URL", text)
    return re.sub(r"\d+\.\d+\.\d+|\d+(\.\d+)? (?:µs|ms|s)\b", "#", text)


def on_free_ports(page: str) -> str:
    """Return *page* with a free port of this machine for each port that it names."""
    with ExitStack() as stack:
        sockets = {port: stack.enter_context(socket.socket()) for port in {*_PORT.findall(page)}}
        for each in sockets.values():
            each.bind(("127.0.0.1", 0))
        return _PORT.sub(lambda found: str(sockets[found[0]].getsockname()[1]), page)
