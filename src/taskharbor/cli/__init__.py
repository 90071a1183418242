"""The command-line interface: `taskharbor`, `th`, or `python -m taskharbor.cli`."""

from taskharbor.cli.main import main

__all__ = ["main"]
