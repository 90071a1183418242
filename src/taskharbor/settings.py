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
    sqs_prefix: str | None = None
    aws_region: str | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Return what *environ* says. A variable that is empty says nothing."""
        return cls(
            url=environ.get("TASKHARBOR_URL") or None,
            no_color=bool(environ.get("NO_COLOR")),
            sqs_prefix=environ.get("TASKHARBOR_SQS_PREFIX") or None,
            # boto3 reads the second alone; where AWS runs a program, it sets the first.
            aws_region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or None,
        )

    def require_url(self) -> str:
        """Return the store's URL, or raise `UrlMissing`."""
        if self.url is None:
            raise UrlMissing
        return self.url


def child_environment(*, url: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what a process of ours is given: what this one has, and the store at *url*."""
    return {**environ, "TASKHARBOR_URL": url}


class UrlMissing(UsageError):
    """Nobody said which store to use."""

    def __str__(self) -> str:
        return (
            "no store was given; pass its URL (on the command line: --url) or set TASKHARBOR_URL, "
            "for example to postgresql://localhost/app, sqlite:///jobs.db or memory://"
        )
