"""Settings from environment variables. No other module reads them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.durations import parse_duration
from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.retention import KEEP, check_retention

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.core.durations import Duration
    from taskharbor.core.retention import RetentionOptions

VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "TASKHARBOR_URL": "the URL of the store, if neither `--url` nor the app names one",
        "TASKHARBOR_APP": "the app that commands use if none is named, as for `taskharbor worker`",
        "TASKHARBOR_DEV": "whether to warn of likely mistakes, such as a job beside an open transaction: a boolean",
        "TASKHARBOR_APP_VERSION": "the version of your application that a worker records, for example a commit",
        "TASKHARBOR_HEALTH_HOST": "the address on which services answer probes: `--health-host`",
        "TASKHARBOR_HEALTH_PORT": "the port on which services answer probes: `--health-port`",
        "TASKHARBOR_HEALTH_STUCK_AFTER": "how much longer than by design a loop may take: `--health-stuck-after`",
        "TASKHARBOR_KEEP": "how long finished jobs are kept: `--keep`",
        "TASKHARBOR_KEEP_DEAD": "how long dead letters are kept: `--keep-dead`",
        "TASKHARBOR_LOG_LEVEL": "the lowest level of log lines: `--log-level`",
        "TASKHARBOR_SQS_PREFIX": "the prefix of the names of all SQS queues",
        "TASKHARBOR_TRACING": "whether spans are made for OpenTelemetry: a boolean",
        "FORWARDED_ALLOW_IPS": "the proxies that the API believes: `--forwarded-allow-ips`, as for uvicorn",
        "AWS_REGION": "the region of SQS",
        "AWS_DEFAULT_REGION": "the same, if `AWS_REGION` is not set",
        "NO_COLOR": "set to any text: no colors on a terminal",
        "NOTIFY_SOCKET": "set by systemd for `Type=notify`: where start, progress and stop are reported",
        "WATCHDOG_USEC": "set by systemd for `WatchdogSec=`: how often progress is reported",
        "WATCHDOG_PID": "set by systemd: the process that must report progress",
    }
)
"""Every environment variable that `Settings.from_env` reads, and what it is for. A test compares both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a process. Arguments override them.

    >>> Settings.from_env({"TASKHARBOR_URL": "memory://"}).require_url()
    'memory://'
    """

    url: str | None = field(default=None, repr=False)  # may contain a password
    no_color: bool = False
    log_level: str | None = None
    sqs_prefix: str | None = None
    aws_region: str | None = None
    keep: str | None = None
    keep_dead: str | None = None
    notify_socket: str | None = None
    watchdog: timedelta | None = None
    health_port: str | None = None
    health_host: str | None = None
    health_stuck_after: str | None = None
    tracing: str | None = None
    app_version: str | None = None
    app: str | None = None
    development: str | None = None
    forwarded_allow_ips: str | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings in *environ*. An empty variable counts as unset."""
        return cls(
            url=environ.get("TASKHARBOR_URL") or None,
            no_color=bool(environ.get("NO_COLOR")),
            log_level=environ.get("TASKHARBOR_LOG_LEVEL") or None,
            sqs_prefix=environ.get("TASKHARBOR_SQS_PREFIX") or None,
            # boto3 reads only the second one; AWS runtimes such as Lambda set the first one.
            aws_region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or None,
            keep=environ.get("TASKHARBOR_KEEP") or None,
            keep_dead=environ.get("TASKHARBOR_KEEP_DEAD") or None,
            notify_socket=environ.get("NOTIFY_SOCKET") or None,
            watchdog=_watchdog(environ.get("WATCHDOG_USEC"), environ.get("WATCHDOG_PID")),
            health_port=environ.get("TASKHARBOR_HEALTH_PORT") or None,
            health_host=environ.get("TASKHARBOR_HEALTH_HOST") or None,
            health_stuck_after=environ.get("TASKHARBOR_HEALTH_STUCK_AFTER") or None,
            tracing=environ.get("TASKHARBOR_TRACING") or None,
            app_version=environ.get("TASKHARBOR_APP_VERSION") or None,
            app=environ.get("TASKHARBOR_APP") or None,
            development=environ.get("TASKHARBOR_DEV") or None,
            forwarded_allow_ips=environ.get("FORWARDED_ALLOW_IPS") or None,
        )

    def require_url(self) -> str:
        """Return the store's URL, or raise `UrlMissing`."""
        if self.url is None:
            raise UrlMissing
        return self.url

    def retention(self, keep: Duration | None, keep_dead: Duration | None) -> RetentionOptions:
        """Return the retention that the arguments, else the settings, else the defaults say; or raise `UsageError`."""
        if keep is None:
            keep = KEEP if self.keep is None else _duration("TASKHARBOR_KEEP", self.keep)
        if keep_dead is None and self.keep_dead is not None:
            keep_dead = _duration("TASKHARBOR_KEEP_DEAD", self.keep_dead)
        return check_retention(keep, keep_dead)

    @property
    def is_tracing(self) -> bool:
        """Whether spans are made if no argument says so. Raises `UsageError` if the setting is not a boolean."""
        return _boolean("TASKHARBOR_TRACING", self.tracing)

    @property
    def is_development(self) -> bool:
        """Whether to warn of likely mistakes in the application. Raises `UsageError` as `is_tracing` does."""
        return _boolean("TASKHARBOR_DEV", self.development) or sys.flags.dev_mode


_BOOLEANS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _boolean(name: str, text: str | None) -> bool:
    if text is None:
        return False
    if text.lower() not in _BOOLEANS:
        raise UsageError(Problem(field=name, value=repr(text), rule=f"must be one of {', '.join(_BOOLEANS)}"))
    return _BOOLEANS[text.lower()]


def _duration(name: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(Problem(field=name, value=repr(text), rule=str(error))) from None


def _watchdog(usec: str | None, pid: str | None) -> timedelta | None:
    """Return the timeout of systemd's watchdog, if it is meant for this process."""
    is_own = pid is None or pid == str(os.getpid())
    return timedelta(microseconds=int(usec)) if is_own and usec is not None and usec.isdecimal() else None


SYSTEMD_VARIABLES: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})


def child_environment(
    *, url: str | None, development: bool = False, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment for a child process that uses the store at *url*, or if that is None, the same one.

    This process alone reports to systemd. With *development*, the child warns of likely mistakes, unless TASKHARBOR_DEV
    says otherwise.
    """
    inherited = {name: value for name, value in environ.items() if name not in SYSTEMD_VARIABLES}
    flags = {"TASKHARBOR_DEV": "1"} if development else {}
    return flags | inherited | ({} if url is None else {"TASKHARBOR_URL": url})


def export_app(app: str, **variables: str) -> None:
    """Let the commands that run in this process and its children use *app*, unless another is named.

    *variables* are those that another process needs to load it.
    """
    os.environ.update({"TASKHARBOR_APP": app, **variables})


class UrlMissing(UsageError):
    """No store URL was given."""

    def __str__(self) -> str:
        return (
            "no store configured; pass its URL (on the command line: --url) or set TASKHARBOR_URL, "
            "for example to postgresql://localhost/app or sqlite:///jobs.db"
        )
