"""What a check found, and how checks are run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from taskharbor.core.errors import TaskHarborError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Level(StrEnum):
    """How bad it is: OK, a risk (WARN), or something that does not work now (FAIL)."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: its name, a sentence about what was found, and what to do about it."""

    check: str
    level: Level
    text: str
    remedy: str = ""

    def view(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"check": self.check, "level": self.level.value, "text": self.text, "remedy": self.remedy}


Problem = tuple[Level, str, str]
"""A level, what was found, and the remedy."""


class NotChecked(Exception):
    """A check cannot be made, for a reason that another check reports."""


def run_check(name: str, fine: str, check: Callable[[], Iterable[Problem]]) -> Iterator[Finding]:
    """Yield a finding for each problem that *check* returns, or one that says that all is *fine*.

    Yield nothing if it raises `NotChecked`: nothing is known then.
    """
    try:
        problems = list(check())
    except NotChecked:
        return
    except TaskHarborError as error:
        problems = [(Level.FAIL, f"it could not be checked: {error}", "")]
    except Exception as error:  # noqa: BLE001  reported as a finding; the other checks are run
        problems = [(Level.FAIL, f"it could not be checked: {type(error).__name__}: {error}", "")]
    if not problems:
        yield Finding(name, Level.OK, fine)
    for level, text, remedy in problems:
        yield Finding(name, level, text, remedy)
