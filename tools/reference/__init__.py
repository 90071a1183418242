"""The parts of the documentation that are generated from code, as Markdown.

A page below docs/ names a part in a comment, ``<!-- generated: cli -->``. `tools.docs_site` replaces the comment when
it builds the site.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tools.reference import cli, error_codes, http_api, metrics, python_api, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PARTS: Final[Mapping[str, Callable[[], str]]] = MappingProxyType(
    {
        "cli": cli.commands,
        "errors": error_codes.errors,
        "exit-codes": error_codes.exit_codes,
        "http": http_api.operations,
        "http-codes": http_api.codes,
        "http-schemas": http_api.schemas,
        "metrics": metrics.metrics,
        "python-api": python_api.names,
        "settings": settings.variables,
    }
)
