"""`taskharbor doctor`: checks of a store, its jobs and its queues in SQS, each with the cause and the way out."""

from __future__ import annotations

from taskharbor.doctor.findings import Finding, Level

__all__ = ["Finding", "Level"]
