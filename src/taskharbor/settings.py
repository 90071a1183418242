"""What the environment says. It is read here and nowhere else."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskharbor.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a process is told from outside; arguments always win over it.

    >>> Settings.from_env({"TASKHARBOR_URL": "memory://"}).require_url()
    'memory://'
    """

    url: str | None = field(default=None, repr=False)  # may hold a password
    no_color: bool = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Return what *environ* says. A variable that is empty says nothing."""
        return cls(url=environ.get("TASKHARBOR_URL") or None, no_color=bool(environ.get("NO_COLOR")))

    def require_url(self) -> str:
        """Return the store's URL, or raise `UrlMissing`."""
        if self.url is None:
            raise UrlMissing
        return self.url


class UrlMissing(UsageError):
    """Nobody said which store to use."""

    def __str__(self) -> str:
        return (
            "no store was given; pass its URL (on the command line: --url) or set TASKHARBOR_URL, "
            "for example to postgresql://localhost/app, sqlite:///jobs.db or memory://"
        )
