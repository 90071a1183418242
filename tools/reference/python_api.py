"""The names that `taskharbor` exports, for Sphinx's autodoc."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import taskharbor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SECTIONS: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "Define and enqueue": ["Harbor", "Task", "Call", "Handle", "Status"],
        "In a handler": ["Context", "Retry", "Snooze", "Cancel", "DeadLetter", "AttemptStopped"],
        "Retries": ["RetryPolicy", "Exponential", "Fixed", "Never"],
        "Lower level": ["Client", "JobRequest", "Job", "Enqueued", "Worker", "DueTaskEnqueuer", "SqsTransport"],
        "Stores and codecs": ["MemoryDriver", "SqliteDriver", "PostgresDriver", "Codec", "JsonCodec"],
        "Logging": ["JobLogFilter"],
        "Exceptions": [
            "TaskHarborError",
            "UsageError",
            "InvalidRequest",
            "IdempotencyConflict",
            "EnqueueRefused",
            "JobNotFound",
            "JobFailed",
            "ResultTimeout",
            "LeaseLost",
            "SchemaOutOfDate",
            "StoreUnavailable",
        ],
    }
)

ELSEWHERE: Final = (
    ".. autofunction:: taskharbor.api.create_app\n",
    ".. autofunction:: taskharbor.api.lifespan_for\n",
    ".. autofunction:: taskharbor.api.harbor_from\n",
    ".. autofunction:: taskharbor.dashboard.dashboard\n",
    ".. autoclass:: taskharbor.testing.Harness\n   :members:\n",
    ".. autoclass:: taskharbor.observability.prometheus.PrometheusHook\n   :members: watch\n",
)
"""Names that pages document, and that `taskharbor` does not export, because they need extras or pytest."""


def names() -> str:
    grouped = {name for section in SECTIONS.values() for name in section}
    others = sorted({*taskharbor.__all__} - grouped - {"__version__"})
    sections = {**SECTIONS, **({"Others": others} if others else {})}
    listed = "".join(f"## {title}\n\n{_directives(section)}" for title, section in sections.items())
    return listed + "## In other modules\n\n```{eval-rst}\n" + "\n".join(ELSEWHERE) + "```\n"


def _directives(section: Sequence[str]) -> str:
    lines = [f".. autoclass:: taskharbor.{name}\n   :members:\n{_bases(name)}" for name in section]
    return "```{eval-rst}\n" + "\n".join(lines) + "```\n\n"


def _bases(name: str) -> str:
    """Return the option that shows the bases of a class, if it is an exception: those of others are no help."""
    return "   :show-inheritance:\n" if issubclass(getattr(taskharbor, name), Exception) else ""
