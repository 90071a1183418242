"""Settings from environment variables. No other module reads them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskharbor.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a process. Arguments override them.

    >>> Settings.from_env({"TASKHARBOR_URL": "memory://"}).require_url()
    'memory://'
    """

    url: str | None = field(default=None, repr=False)  # may contain a password
    no_color: bool = False
    sqs_prefix: str | None = None
    aws_region: str | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings in *environ*. An empty variable counts as unset."""
        return cls(
            url=environ.get("TASKHARBOR_URL") or None,
            no_color=bool(environ.get("NO_COLOR")),
            sqs_prefix=environ.get("TASKHARBOR_SQS_PREFIX") or None,
            # boto3 reads only the second one; AWS runtimes such as Lambda set the first one.
            aws_region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or None,
        )

    def require_url(self) -> str:
        """Return the store's URL, or raise `UrlMissing`."""
        if self.url is None:
            raise UrlMissing
        return self.url


def child_environment(*, url: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for a child process that uses the store at *url*."""
    return {**environ, "TASKHARBOR_URL": url}


class UrlMissing(UsageError):
    """No store URL was given."""

    def __str__(self) -> str:
        return (
            "no store configured; pass its URL (on the command line: --url) or set TASKHARBOR_URL, "
            "for example to postgresql://localhost/app, sqlite:///jobs.db or memory://"
        )
