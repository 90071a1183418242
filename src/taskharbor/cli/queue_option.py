"""The option that names queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

Options = TypeVar("Options", bound="Callable[..., Any]")


def queue_option(parse: Callable[[str], Any], *, metavar: str, help_text: str) -> Callable[[Options], Options]:
    """Return the option ``-q``. Given several times, it means what a list means: with click's default the last wins."""

    def parse_all(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> object:
        return parse(",".join(given)) if given else None

    return click.option("-q", "--queues", multiple=True, callback=parse_all, metavar=metavar, help=help_text)
