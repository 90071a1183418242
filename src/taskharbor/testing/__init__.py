"""Test tools: a harness for tasks, the driver conformance kit, a simulator, and test servers for PostgreSQL and SQS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskharbor.testing.harness import Harness

__all__ = ["Harness"]

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import `Harness` on first use: pytest loads this package in every run."""
        if name != "Harness":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")  # noqa: TRY003  Python's own words
        from taskharbor.testing.harness import Harness  # noqa: PLC0415  as above

        return Harness
