from __future__ import annotations

import platform
from typing import Final

import click

from taskharbor._version import __version__
from taskharbor.cli.options import json_option
from taskharbor.cli.render import echo_data

NAMES: Final = ("taskharbor", "th")


@click.command()
@json_option
def version(*, as_json: bool) -> None:
    """Show the installed version.

    With --json: {"version": ..., "python": ..., "platform": ...}
    """
    facts = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
    echo_data(facts, as_json=as_json, plain="taskharbor {version} (Python {python}, {platform})".format(**facts))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> None:
    """Print a completion script for a shell.

    \b
    bash   eval "$(taskharbor completion bash)"      in ~/.bashrc
    zsh    eval "$(taskharbor completion zsh)"       in ~/.zshrc
    fish   taskharbor completion fish | source       in ~/.config/fish/config.fish
    """  # noqa: D301  click needs the character \b
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:  # pragma: no cover  click knows all three
        raise click.BadParameter(shell)
    for name in NAMES:
        maker = kind(click.get_current_context().find_root().command, {}, name, f"_{name.upper()}_COMPLETE")
        # Not source(): it would start bash to check its version.
        click.echo(maker.source_template % maker.source_vars())
